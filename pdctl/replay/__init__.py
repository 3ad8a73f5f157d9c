"""Recorded rounds executed again: planned from recordings, run by real processes on a real group, judged."""
