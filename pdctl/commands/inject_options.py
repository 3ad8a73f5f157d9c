"""What ``pdctl inject`` was asked for, from its options: which kind, with what, for which rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import typer

from pdctl.faults.kinds import KINDS, STATES, Kind, Parameter
from pdctl.faults.limits import MAX_TTL_S
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError

ANOTHER_ROOM = "any"
MAX_ROOM = (1 << 64) - 1
MAX_DP = 1 << 20


@dataclass(frozen=True)
class Asked:
    """One kind of fault with its parameter: seconds, or the number of a state, dp rank or room."""

    kind: Kind
    delay_s: float = 0.0
    value: int = 0

    @property
    def text(self) -> str:
        """How people write it: ``delay-metadata 5s``."""
        return say(self.kind.name, self.delay_s, self.value)


def say(kind: str, delay_s: float, value: int) -> str:
    """Return a fault and its parameter in words; the kind may be one this version does not know."""
    known = KINDS.get(kind)
    parameter = known.parameter if known else Parameter.DURATION if delay_s else Parameter.NONE
    if parameter is Parameter.DURATION:
        return f"{kind} {durations.show(delay_s)}"
    if parameter is Parameter.STATE:
        return f"{kind} {next((name for name, number in STATES.items() if number == value), value)}"
    if parameter is Parameter.ROOM:
        return f"{kind} {value or ANOTHER_ROOM}"
    return f"{kind} {value}" if parameter is Parameter.DP else kind


def asked(given: Mapping[str, str | bool]) -> Asked:
    """Return the one fault that the options name; ``given``: what was written for each kind, "" or False for nothing.

    Raises typer.BadParameter for none, for two, and for a parameter that is none; PdctlError (REFUSED) for a duration
    over the limit.
    """
    named = [kind for kind in KINDS.values() if given.get(kind.name)]
    if not named:
        raise typer.BadParameter("name one fault, as --delay-metadata TIME; --help lists them")
    if len(named) > 1:
        raise typer.BadParameter("one fault at a time, not " + " and ".join(f"--{kind.name}" for kind in named))
    kind = named[0]
    text = str(given[kind.name])
    if kind.parameter is Parameter.DURATION:
        return Asked(kind, delay_s=_duration(text, kind.most_s, f"--{kind.name}"))
    if kind.parameter is Parameter.NONE:
        return Asked(kind)
    return Asked(kind, value=_value(kind, text))


def _duration(text: str, most_s: float, what: str) -> float:
    try:
        return durations.parse(text, most_s=most_s, what=what)
    except durations.TooLong as error:  # what it may cost at most is a safety rule
        raise PdctlError(str(error), "no option widens it", Exit.REFUSED) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _value(kind: Kind, text: str) -> int:
    option = f"--{kind.name}"
    if kind.parameter is Parameter.STATE:
        found = {name.lower(): number for name, number in STATES.items()}.get(text.lower())
        if found is None:
            raise typer.BadParameter(f"{option} {text!r} is no state: {', '.join(STATES)}")
        return found
    if kind.parameter is Parameter.ROOM and text == ANOTHER_ROOM:
        return 0
    least, most, noun = (0, MAX_DP, "dp rank") if kind.parameter is Parameter.DP else (1, MAX_ROOM, "room")
    if not (text.isascii() and text.isdecimal()) or not least <= int(text[:24]) <= most:
        raise typer.BadParameter(f"{option} {text!r} is no {noun}")
    return int(text)


def share(text: str) -> float:
    """Return ``10%`` or ``0.1`` as 0.1. Raises typer.BadParameter for what is not over 0 and at most 100%."""
    written = text.strip()
    number, percent = (written[:-1], 100.0) if written.endswith("%") else (written, 1.0)
    try:
        found = float(number) / percent
    except ValueError:
        found = -1.0
    if not 0.0 < found <= 1.0:  # false for NaN as well
        raise typer.BadParameter(f"--share {text!r} is no share: write 10% or 0.1, over 0 and at most 100%")
    return found


def time_to_live(text: str) -> float:
    """Return the seconds of ``--for``. Raises typer.BadParameter, and PdctlError (REFUSED) over the limit."""
    return _duration(text, MAX_TTL_S, "--for")
