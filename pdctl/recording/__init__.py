"""Recordings: the file each rank keeps of its rounds, and how it is read.

:mod:`.format` says what is where in the file, :mod:`.writer` is what a rank uses (standard library only),
:mod:`.reader` is what everybody else uses (numpy). ``docs/recording-format.md`` is the prose of the same.
"""
