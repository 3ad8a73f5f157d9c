"""Parse and format the parameter of a fault."""

from __future__ import annotations

from pdctl.faults.kinds import KINDS, Kind, Parameter
from pdctl.protocol import durations


def parse(kind: Kind, text: str) -> tuple[float, int]:
    """Return (delay in seconds, number) for ``text`` as a parameter of ``kind``; 0 for the part that the kind lacks.

    Raises ValueError with a sentence for the user, durations.TooLong for a duration over the limit of the kind.
    """
    parameter, option = kind.parameter, f"--{kind.name}"
    if parameter is Parameter.NONE:
        return 0.0, 0
    if parameter is Parameter.DURATION:
        return durations.parse(text, most_s=kind.most_s, what=option), 0
    named = {name.lower(): number for name, number in parameter.named.items()}
    if text.lower() in named:
        return 0.0, named[text.lower()]
    least, most = parameter.least, parameter.most
    if least is not None and text.isascii() and text.isdecimal() and least <= int(text[:24]) <= most:
        return 0.0, int(text)
    known = ([] if least is None else [f"a number from {least} to {most}"]) + list(parameter.named)
    raise ValueError(f"{option} {text!r} is no {parameter.noun}: {', '.join(known)}")


def format_fault(name: str, delay_s: float, value: int) -> str:
    """Return a fault with its parameter, as ``delay-metadata 5s``; this version may not know the kind."""
    kind = KINDS.get(name)
    parameter = kind.parameter if kind else Parameter.DURATION if delay_s else Parameter.NONE
    if parameter is Parameter.NONE:
        return name
    if parameter is Parameter.DURATION:
        return f"{name} {durations.show(delay_s)}"
    return f"{name} {next((known for known, number in parameter.named.items() if number == value), value)}"
