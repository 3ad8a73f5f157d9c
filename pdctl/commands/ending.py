"""How a command ends when it is told to: one that looks again and again, and one that has made files."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDS = (signal.SIGTERM, signal.SIGHUP)
STOPPING = (signal.SIGINT, *_ENDS)


@contextmanager
def tidy_end() -> Iterator[None]:
    """While this lasts SIGTERM and SIGHUP end the command as an exception does: what was made for a while is removed.

    The exit code is then 128 and the signal's number. For the main thread only, and from there on its helpers' business.
    """
    with handled(_end, *_ENDS):
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """While this lasts these signals have this handler. For the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Pressed:
    """Whether Ctrl-C was pressed.

    Its KeyboardInterrupt may be lost: C code clears errors where numpy asks an object for an attribute, or a file is closed.
    """

    def __init__(self) -> None:
        self._seen = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was pressed."""
        if self._seen:
            raise KeyboardInterrupt

    def hear(self, *_: object) -> None:
        """Note it, and raise KeyboardInterrupt: the handler of its signal."""
        self._seen = True
        raise KeyboardInterrupt


@contextmanager
def ctrl_c() -> Iterator[Pressed]:
    """Yield whether Ctrl-C was pressed since, for the main thread. Where it is ignored or means something else, it stays so."""
    pressed = Pressed()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pressed
        return
    signal.signal(signal.SIGINT, pressed.hear)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
