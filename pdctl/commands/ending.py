"""How a command that has made files ends when it is told to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def tidy_end() -> Iterator[None]:
    """While this lasts SIGTERM and SIGHUP end the command as an exception does: what was made for a while is removed.

    The exit code is then 128 and the signal's number. For the main thread only, and from there on its helpers' business.
    """
    before = {number: signal.signal(number, _end) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
