"""Coverage-guided fuzzing of what reads untrusted bytes; ``python -m tests.fuzz`` runs it, with atheris installed."""
