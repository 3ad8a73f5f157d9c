"""Traces: recordings of many ranks in one file, kept while the ranks run or after they died.

:mod:`.manifest` is the list of what a trace holds. :mod:`.container` writes and opens traces. :mod:`.redact` removes names.
:mod:`pdctl.targets.collect` gets recordings from ranks. ``docs/trace-format.md`` describes the format.
"""
