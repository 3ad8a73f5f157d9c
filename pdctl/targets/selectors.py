"""Select ranks by patterns: ``decode:dp0:pp0:tp1``. Parts come in any order and may be left out; shell globs are allowed.

``decode:tp1`` is tp1 of every dp and pp of every decode server; ``decode`` every decode rank; ``*:tp[01]`` and ``tp0-1``
tp0 and tp1 of both roles. A name after ``host=`` or ``cluster=`` narrows to hosts or clusters. Parts may also stand as
labels have them, with blanks between: ``decode dp0 tp0,1``.

:func:`select` is what ``--rank``, ``--group``, ``--server`` and ``--role`` mean, alone and together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Identity
from pdctl.targets import nodeset
from pdctl.targets.servers import told_apart

AXES = ("dp", "pp", "cp", "tp")
NAMES = ("host", "cluster")
_AXIS = re.compile(r"(dp|pp|cp|tp)(.*)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_GLOB = re.compile(r"-?(?:[0-9*?]|\[!?[0-9,-]+\])+", re.ASCII)
_OF_DIGITS = re.compile(r"([0-9])-([0-9])", re.ASCII)
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""One that is not between brackets."""
_ROLE = re.compile(r"[a-z*?\[\]!-]+", re.ASCII)
_BETWEEN = re.compile(r":| +")
ROLES = ("prefill", "decode")
_ALL_ROLES = (*ROLES, "unified", "unknown")
_LABEL = re.compile(r"pid [0-9]+|[a-z]+://\S+|(unified|unknown)( (dp|pp|cp|tp)-?[0-9]+)+", re.ASCII)
"""Labels that are no patterns: of ranks whose role or place is unknown, or that have no side."""


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
        items = _COMMA.split(axis[2])
        wrong = next((found for item in items if (found := _wrong(item))), "")
        if wrong:
            return "", "", f"{part!r} {wrong}"
        # "tp01" is meant as tp1, but to a glob they differ
        return axis[1], ",".join(str(int(item)) if _NUMBER.fullmatch(item) else item for item in items), ""
    if _ROLE.fullmatch(part) and any(fnmatchcase(role, part) for role in ROLES):
        return "role", part, ""
    return "", "", f"{part!r} is neither a role ({', '.join(ROLES)}) nor one of {', '.join(AXES)} with a number"


def _wrong(item: str) -> str:
    """Return what is wrong with a number, a range or a glob: it would fit nothing, whoever is there. "" for nothing."""
    found = _RANGE.fullmatch(item)
    pairs = [found.groups()] if found is not None else _OF_DIGITS.findall(item) if "[" in item else []
    backwards = next((f"{first}-{last}" for first, last in pairs if int(first) > int(last)), "")
    if backwards:
        return f"has the range {backwards}, which runs backwards"
    return "" if found is not None or _GLOB.fullmatch(item) else "needs a number, a range or a glob"


def _fits(value: object, glob: str) -> bool:
    """Return whether a value fits: any of numbers, ranges and globs (``0-6,8,1?``), or a name's glob."""
    if isinstance(value, str):
        return fnmatchcase(value, glob)
    ranges = [(one, _RANGE.fullmatch(one)) for one in _COMMA.split(glob)]
    return any(
        int(found[1]) <= int(str(value)) <= int(found[2]) if found else fnmatchcase(str(value), one)
        for one, found in ranges
    )


MOST_NAMED = 12
"""Names that an error gives of those there are."""


class Selection(msgspec.Struct, frozen=True):
    """Which ranks are meant: those that fit one value of each option that was given; all, where none was.

    ranks: patterns, or labels. groups: the same, and titles of groups as output has them; each means every rank of the group.
    servers: globs of a server's service, with or without its role, of its short name, or of its instance. roles: globs.
    """

    ranks: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    @property
    def given(self) -> Mapping[str, tuple[str, ...]]:
        """Option → its values, of those that were given."""
        options = {"--rank": self.ranks, "--group": self.groups, "--server": self.servers, "--role": self.roles}
        return {option: texts for option, texts in options.items() if texts}


def check(selection: Selection) -> None:
    """Check what no rank can change. Raises PdctlError (USAGE) for a pattern that is none, and for what nothing ever fits."""
    for text in (*selection.ranks, *selection.groups):
        place = text.strip().partition(" · ")[0]
        if not _LABEL.fullmatch(place):
            _parsed(place)
    for role in selection.roles:
        if not any(fnmatchcase(one, role.strip()) for one in _ALL_ROLES):
            raise PdctlError(f"no role matches {role!r}", f"Roles are: {'; '.join(sorted(ROLES))}.", Exit.USAGE)
    if not all(map(str.strip, selection.servers)):
        raise PdctlError("no server matches ''", "pdctl ranks names the servers there are.", Exit.USAGE)


def select(selection: Selection, identities: Sequence[Identity]) -> list[int]:
    """Return the numbers of the identities that are meant, in their order.

    Raises PdctlError (USAGE) for a pattern that is none, a value that nothing fits, and options that no rank fits together.
    """
    meant = set(range(len(identities)))
    for option, texts in selection.given.items():
        fitting: set[int] = set()
        for text in texts:
            found = _FITTING[option](text.strip(), identities)
            if not found:
                raise _none(f"no {option[2:]} matches {text!r}", option, identities)
            fitting |= found
        meant &= fitting
    if not meant and identities:
        raise _none(f"no rank fits {' and '.join(selection.given)} together", "--rank", identities)
    return sorted(meant)


def _of_ranks(text: str, identities: Sequence[Identity]) -> set[int]:
    found = {n for n, one in enumerate(identities) if one.label == text}
    if found or _LABEL.fullmatch(text):
        return found
    selector = _parsed(text)
    return {n for n, one in enumerate(identities) if selector.matches(one)}


def _parsed(text: str) -> Selector:
    try:
        return parse(text)
    except ValueError as error:
        raise PdctlError(str(error), code=Exit.USAGE) from None


def _of_groups(text: str, identities: Sequence[Identity]) -> set[int]:
    """Return every rank of the groups that have a rank which the text means, a pattern, or a title as output has them.

    A title has its kind after the place, and the server where several have a group of this name.
    """
    place, *more = text.split(" · ")
    found = _of_ranks(place, identities)
    if len(more) > 1:
        apart = told_apart(identities, [one.label for one in identities])
        found = {n for n in found if apart[n] == more[1]}
    kind = "attn-cp" if more and more[0].startswith("attention-CP") else "attn-tp"
    keys = [_group(one, kind) for one in identities]
    those = {keys[n] for n in found}
    return {n for n, key in enumerate(keys) if key in those}


def _group(one: Identity, kind: str) -> tuple[object, ...]:
    """Return what the ranks of a group have in common; where a rank does not say, those that its coordinates make one."""
    group = next((info.key for info in one.groups if info.kind == kind and one.world_rank in info.ranks), "")
    return (one.instance, group) if group else (*nodeset.server(one), one.dp, one.pp, one.cp)


def _of_servers(text: str, identities: Sequence[Identity]) -> set[int]:
    names = nodeset.server_names(identities)
    fits = {}
    for server, name in names.items():
        role, _, service, instance = server
        fits[server] = any(_is(one, text) for one in (service, address(role, service), name, instance))
    return {n for n, one in enumerate(identities) if fits[nodeset.server(one)]}


def address(role: str, service: str) -> str:
    """Return a service without its role: ``10.0.0.7:30000`` of ``decode@10.0.0.7:30000``."""
    return service.removeprefix(role).lstrip("@ ") if service.startswith((f"{role}@", f"{role} ")) else service


def _of_roles(text: str, identities: Sequence[Identity]) -> set[int]:
    return {n for n, one in enumerate(identities) if fnmatchcase(one.role, text)}


def _is(name: str, text: str) -> bool:
    return bool(name) and (name == text or fnmatchcase(name, text))  # the host of an address may have [ and ]


_FITTING = {"--rank": _of_ranks, "--group": _of_groups, "--server": _of_servers, "--role": _of_roles}


def _none(what: str, option: str, identities: Sequence[Identity]) -> PdctlError:
    named = list(dict.fromkeys(_names(option, identities)))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    there = "; ".join(named[:MOST_NAMED])
    return PdctlError(what, f"There are: {there}{more}. pdctl ranks shows all.", Exit.USAGE)


def _names(option: str, identities: Collection[Identity]) -> Iterator[str]:
    """Yield what there is of the kind that an option means."""
    if option == "--role":
        yield from sorted({one.role for one in identities})
    elif option == "--server":
        yield from sorted({one.service for one in identities})
    else:
        names = nodeset.server_names(identities)
        yield from nodeset.terms((nodeset.place(one, names) for one in identities), nodeset.shown_axes(identities))
