"""Traces: recordings of many ranks in one file, kept while the ranks run or after they died.

:mod:`.manifest` says what a trace holds, :mod:`.container` writes and opens one, :mod:`.redact` takes names out,
:mod:`.collect` gets recordings from ranks. ``docs/trace-format.md`` is the prose of the same.
"""
