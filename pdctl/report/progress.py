"""What a command is doing, on a terminal, while it takes longer than a second and prints nothing.

One line on standard error, which goes before anything else is written (:mod:`pdctl.report.output`) and when the command ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AFTER_S = 1.0
EVERY_S = 0.5
_ERASED = "\r\x1b[K"


class _Line:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.command = ""
        self.doing = ""
        self.shown = False
        self.quiet_until = 0.0


_line = _Line()


def _after_fork() -> None:
    global _line  # noqa: PLW0603  # a thread of the parent may hold its lock; a child shows nothing
    _line = _Line()


os.register_at_fork(after_in_child=_after_fork)


def begin(command: str) -> None:
    """Note which command runs, as it is typed without options; "" for one of which nothing is shown."""
    _line.command, _line.doing = command, ""


def doing(text: str) -> None:
    """Note what the command does now: ``asking 4 ranks``."""
    _line.doing = text


def erase() -> None:
    """Take the line away, where it is shown, before something else is written; it comes back after a second of silence."""
    line = _line
    with line.lock:
        line.quiet_until = time.monotonic() + AFTER_S
        if line.shown:
            line.shown = False
            _write(_ERASED)


@contextmanager
def shown() -> Iterator[None]:
    """Show the line while this lasts, if standard error is a terminal."""
    if not _terminal():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(over,), name="pdctl progress", daemon=True)
    erase()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(EVERY_S)
        erase()


def _show(over: threading.Event) -> None:
    line, began = _line, time.monotonic()
    while not over.wait(EVERY_S):
        with line.lock:
            now = time.monotonic()
            if line.command and now >= line.quiet_until and not over.is_set():
                line.shown = True
                at = f": {line.doing}" if line.doing else ""
                _write(f"{_ERASED}pdctl {line.command}{at}, {now - began:.0f} s")


def _terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
