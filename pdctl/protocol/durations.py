"""Durations as people write them: ``500ms``, ``5s``, ``2m``, ``1h``, ``1m30s``."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
EXAMPLES = "500ms, 5s, 2m or 1m30s"


class TooLong(ValueError):  # noqa: N818  # it says what is wrong
    """It is a duration, but over the limit."""


def parse(text: str, *, most_s: float, what: str = "duration") -> float:
    """Return ``text`` in seconds. Raises ValueError with a sentence for the user, TooLong for more than ``most_s``.

    Refused as well: no unit, a sign, zero, under one millisecond.
    """
    written = text.strip()
    if written.startswith("-"):
        raise ValueError(f"{what} {text!r} is negative")
    seconds, at = 0.0, 0
    while at < len(written):
        part = _PART.match(written, at)
        if part is None:
            raise ValueError(f"{what} {text!r} is not a duration: write {EXAMPLES}")
        seconds += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not written:
        raise ValueError(f"{what} is empty: write {EXAMPLES}")
    if seconds < 0.001:
        raise ValueError(f"{what} {text!r} is zero or under 1ms")
    if seconds > most_s:
        raise TooLong(f"{what} {text!r} is over the limit of {show(most_s)}")
    return seconds


def show(seconds: float) -> str:
    """Return seconds as :func:`parse` reads them: ``500ms``, ``5s``, ``2.5s``, ``1m30s``, ``15m``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{round(seconds, 1):g}s"
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def seconds(value: float) -> str:
    """Return a duration as people say it: ``40 ms``, ``14.2 s``, ``12 min``."""
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 600 else f"{value / 60:.0f} min"
