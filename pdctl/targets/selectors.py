"""Select ranks by patterns: ``decode:dp0:pp0:tp1``. Parts come in any order and may be left out; shell globs are allowed.

``decode:tp1`` is tp1 of every dp and pp of every decode server; ``decode`` every decode rank; ``*:tp[01]`` and ``tp0-1``
tp0 and tp1 of both roles. A name after ``host=`` or ``cluster=`` narrows to hosts or clusters. Parts may also stand as
labels have them, with blanks between: ``decode dp0 tp0,1``.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import msgspec

from pdctl.protocol.model import Identity

AXES = ("dp", "pp", "cp", "tp")
NAMES = ("host", "cluster")
_AXIS = re.compile(r"(dp|pp|cp|tp)(.*)", re.ASCII)
_NUMBERS = re.compile(r"[0-9*?\[\]!,-]+", re.ASCII)
_RANGE = re.compile(r"([0-9]+)-([0-9]+)", re.ASCII)
_ROLE = re.compile(r"[a-z*?\[\]!-]+", re.ASCII)
_BETWEEN = re.compile(r":| +")
ROLES = ("prefill", "decode")


class Selector(msgspec.Struct, frozen=True):
    """One pattern. role and the values of ``parts`` are globs; ``text`` is how it was written."""

    text: str
    role: str = "*"
    parts: tuple[tuple[str, str], ...] = ()

    def matches(self, identity: Identity) -> bool:
        """Return whether the rank is meant."""
        return fnmatchcase(identity.role, self.role) and all(
            _fits(getattr(identity, name), glob) for name, glob in self.parts
        )


def parse(text: str) -> Selector:
    """Return the selector written as ``text``. Raises ValueError with a sentence for the user."""
    role, parts = "", {}
    for part in _BETWEEN.split(text.strip()):
        name, glob, problem = _part(part)
        if problem:
            raise ValueError(f"rank pattern {text!r}: {problem}; write it like decode:dp0:pp0:tp1 or decode:tp*")
        if name == "role":
            if role and glob == "*":
                continue  # prefill:* is every prefill rank, however it is written
            if role:
                raise ValueError(f"rank pattern {text!r} names two roles, {role} and {glob}")
            role = glob
        elif name in parts:
            raise ValueError(f"rank pattern {text!r} names {name} twice")
        else:
            parts[name] = glob
    return Selector(text.strip(), role or "*", tuple(parts.items()))


def _part(part: str) -> tuple[str, str, str]:
    """Return (name, glob, problem) of one part."""
    if not part:
        return "", "", "a part is empty"
    name, equals, value = part.partition("=")
    if equals:
        if name not in NAMES or not value:
            return "", "", f"{part!r} is none of {', '.join(f'{n}=NAME' for n in NAMES)}"
        return name, value, ""
    axis = _AXIS.fullmatch(part)
    if axis:
        if not _NUMBERS.fullmatch(axis[2]):
            return "", "", f"{part!r} needs a number or a glob after {axis[1]}"
        # "tp01" is meant as tp1, but to a glob they differ
        return axis[1], str(int(axis[2])) if axis[2].isdigit() else axis[2], ""
    if _ROLE.fullmatch(part) and any(fnmatchcase(role, part) for role in ROLES):
        return "role", part, ""
    return "", "", f"{part!r} is neither a role ({', '.join(ROLES)}) nor one of {', '.join(AXES)} with a number"


def _fits(value: object, glob: str) -> bool:
    """Return whether a value fits: any of numbers and ranges (``0-6,8``), or a glob."""
    if isinstance(value, str) or "[" in glob:
        return fnmatchcase(str(value), glob)
    ranges = [(one, _RANGE.fullmatch(one)) for one in glob.split(",")]
    return any(
        int(found[1]) <= int(str(value)) <= int(found[2]) if found else fnmatchcase(str(value), one)
        for one, found in ranges
    )
