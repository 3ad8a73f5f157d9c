"""The part of a rank's status that changes from one look at its scheduler loop to the next."""

from __future__ import annotations

import msgspec

from pdctl.protocol.model import Call, Frame, GroupCount


class Moment(msgspec.Struct, frozen=True):
    """A live rank's answer to ``status`` with ``moment`` set. Its fields are those of :class:`pdctl.protocol.model.Status`.

    An older agent answers with its whole status, which can be read as this.
    """

    mono_ns: int
    ticks: int
    tick_mono_ns: int
    call: Call
    stack: tuple[Frame, ...]
    rounds: dict[str, int]
    counts: tuple[GroupCount, ...] = ()
