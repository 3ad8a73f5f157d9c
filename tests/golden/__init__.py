"""What every command of pdctl prints today, in files: a change of the code that is no change of behaviour leaves them alone.

``python -m tests.golden`` compares, ``python -m tests.golden --write`` takes what it sees as the new truth.
"""
