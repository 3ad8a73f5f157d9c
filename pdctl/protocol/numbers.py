"""Numbers in texts of others: digits of ASCII only, and a bound."""

from __future__ import annotations

PORT = (1 << 16) - 1
ROOM = (1 << 64) - 1


def whole(text: str, most: int = ROOM) -> int | None:
    """Return the whole number that ``text`` is, None where it is none or over ``most``. Never raises for long texts."""
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None
