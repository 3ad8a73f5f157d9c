"""What every command says of a room or a request that was asked for and that nobody has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from pdctl.protocol.errors import Exit, PdctlError


def unknown_words(asked: str, looked: str) -> str:
    """Return that ``asked`` is unknown. looked: where it is not, in words."""
    return f"{asked} is unknown here: {looked}"


def nearest_words(near: Sequence[object]) -> str:
    """Return what is known and like it, nearest first."""
    return f"Nearest known: {', '.join(map(str, near))}." if near else "Nothing like it is known here."


def check_known(missing: Collection[int], known: Collection[int], where: str) -> None:
    """Return where no room is missing. Raises PdctlError (PARTIAL) that says what is known like it.

    known: rooms that ranks have elsewhere. where: in what the missing ones are not, in words.
    """
    for room in sorted(missing):
        if room in known:
            raise PdctlError(
                f"room {room} is in {where}", "ranks know it: pdctl story tells what became of it", Exit.PARTIAL
            )
        near = get_close_matches(str(room), map(str, known), n=3, cutoff=0.5)
        raise PdctlError(
            unknown_words(f"room {room}", f"it is in {where}"),
            f"pdctl story {room} tells whether it ever came here. {nearest_words(near)}",
            Exit.PARTIAL,
        )
