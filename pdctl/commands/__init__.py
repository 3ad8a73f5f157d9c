"""One module a command: parse, probe, judge, print, exit code. Only commands print or exit."""
