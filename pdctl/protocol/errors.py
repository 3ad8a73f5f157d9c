"""What pdctl exits with, and the one exception that becomes a line on stderr. Standard library only: ranks use it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    CLEAN = 0  # clean, HOLDS, healed
    FINDING = 1  # a difference, a finding, BROKEN
    USAGE = 2
    PARTIAL = 3  # inconclusive, or some ranks did not answer
    UNREACHABLE = 4  # nothing reached, or not authorised
    REFUSED = 5  # a safety rule said no
    FAULT_ACTIVE = 6  # a fault may still be active
    DEADLINE = 124
    INTERRUPTED = 130


def exit_of(*, seen: bool, partial: bool, none: Exit = Exit.UNREACHABLE) -> Exit:
    """Return what a command exits with that asked many, none of which is at fault.

    seen: at least one gave what was asked for. partial: another one did not. none: the code where none did.
    """
    return none if not seen else Exit.PARTIAL if partial else Exit.CLEAN


class PdctlError(Exception):
    """An error to show to the user. ``next_step`` says what to do about it. The command exits with ``code``.

    details: further lines of the message.
    """

    def __init__(
        self, message: str, next_step: str = "", code: int = Exit.UNREACHABLE, *, details: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.code = Exit(code)
        self.details = tuple(details)
