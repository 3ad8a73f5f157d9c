"""Versions of an engine, and ranges of them: ``0.5.12.post1``, ``>=0.5.11,<0.5.19``. Pure; standard library only."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d{1,6}(?:\.\d{1,6}){0,4})(?:\.post(\d{1,6}))?(?:\+[\w.]*)?", re.ASCII)
_BOUND = re.compile(r"(<=|>=|<|>)(.+)")


def parse(text: str) -> tuple[int, ...] | None:
    """Return a version so that versions compare; None for what is none, and for one before its release (rc, dev, 0.0.0).

    What such a build has and lacks is not known by its number.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    if not any(numbers):  # what builds without a tag call themselves
        return None
    return (*numbers, *[0] * (5 - len(numbers)), int(found[2] or 0))


def within(text: str, bounds: str) -> bool | None:
    """Return whether a version is within ``bounds``, all of which must hold; None where that can't be told.

    Raises ValueError for bounds that are none.
    """
    version = parse(text)
    held = True
    for bound in bounds.split(","):
        found = _BOUND.fullmatch(bound.strip())
        limit = parse(found[2]) if found is not None else None
        if found is None or limit is None:
            raise ValueError(f"{bound!r} bounds no versions")
        if version is not None:
            sign = found[1]
            held &= (
                version < limit
                if sign == "<"
                else version > limit
                if sign == ">"
                else (version <= limit if sign == "<=" else version >= limit)
            )
    return None if version is None else held
