"""Which finding is a consequence of which: one table of rules, and the order in which findings are told. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pdctl.report.findings import Finding, Level

_DIVERGED = ("PD101", "PD103", "PD104", "PD105", "PD106", "PD107", "PD108")
_DEADLOCKED = ("PD160", "PD161")
_REPLACED = ("PD137", "PD144")
_ROUTED = ("PD120", "PD121", "PD122", "PD123", "PD124", "PD125", "PD128", "PD129")
_SHARED = ("PD127", "PD147")
_UNHEARD = ("PD141", "PD142", "PD143", "PD155")
"""Of requests that wait for the other side."""
_WAITS = ("PD140", *_UNHEARD, "PD146", "PD148", "PD156")
"""Of requests that wait."""
_STANDS = ("PD102", "PD110", "PD111", "PD112", "PD114")
"""Of ranks that do not go on."""


class Rule(NamedTuple):
    """Findings of ``causes`` explain those of ``consequences`` that share something with them.

    shares: of which one is enough: ``room``, any; ``rooms``, all that the consequence has; ``unit``, a data-parallel rank of
    a server, any; ``units``, all that the consequence has; ``server``.
    """

    causes: tuple[str, ...]
    consequences: tuple[str, ...]
    shares: tuple[str, ...]


RULES = (
    Rule(("PD131", "PD132", "PD133"), ("PD107", "PD108"), ("room",)),
    Rule(("PD115",), (*_DIVERGED, *_DEADLOCKED, *_STANDS, "PD113", "PD152"), ("server",)),
    Rule(("PD115",), _WAITS, ("room", "unit")),
    Rule(_DIVERGED, (*_DEADLOCKED, *_STANDS, "PD113"), ("unit",)),
    Rule(_DIVERGED, _WAITS, ("room", "unit")),
    Rule(("PD113",), ("PD145", *_DEADLOCKED, *_STANDS), ("server",)),
    Rule(("PD113",), (*_WAITS, "PD122", "PD126", "PD145"), ("rooms", "server")),
    Rule(_DEADLOCKED, (*_STANDS, *_WAITS), ("unit",)),
    Rule(("PD114",), ("PD102", "PD110", "PD111", "PD112"), ("server",)),
    Rule(("PD114",), _WAITS, ("rooms", "unit")),
    Rule(("PD117",), ("PD126", *_UNHEARD), ("unit",)),
    Rule(("PD118",), ("PD126", *_UNHEARD, "PD145"), ("unit",)),
    Rule(("PD110",), ("PD112", *_UNHEARD, "PD148"), ("unit",)),
    Rule(("PD111",), ("PD112", *_UNHEARD), ("unit",)),
    Rule(("PD116", "PD152"), _UNHEARD, ("rooms",)),
    Rule(("PD145",), (*_UNHEARD, "PD122", "PD126"), ("rooms",)),
    Rule(_REPLACED, ("PD120", "PD122", "PD125", "PD128", "PD129"), ("rooms", "server")),
    Rule(_REPLACED, _UNHEARD, ("rooms", "units")),
    Rule(_ROUTED, ("PD126", *_UNHEARD), ("rooms",)),
    Rule(_SHARED, _UNHEARD, ("rooms",)),
    Rule(("PD127",), ("PD147",), ("rooms",)),
    Rule(("PD155",), ("PD141",), ("rooms",)),
    Rule(("PD148",), ("PD102", "PD141"), ("rooms",)),
    Rule(("PD146",), ("PD140",), ("unit",)),
    Rule(("PD140",), ("PD126", "PD141", "PD142", "PD143"), ("rooms",)),
)

ORDER = (
    "PD115", "PD131", "PD132", "PD133", *_DIVERGED, "PD113", *_DEADLOCKED, "PD114", "PD117", "PD118", "PD110",
    "PD111", *_REPLACED, "PD145", "PD123", "PD124", "PD120", "PD121", "PD122", "PD125", "PD128", "PD129", *_SHARED,
    "PD116", "PD152", "PD155", "PD148", "PD146", "PD140",
)  # fmt: skip
"""Causes, those first that others follow from. A finding follows from one that comes before it here, so nothing goes round."""

REPEATED = ("PD113", "PD114", "PD115", "PD117", "PD118")
"""What several probes say, each in its words: once for the same units."""

FIRST = ("PD113",)
"""Causes that are told, and mended, before other ones of their level: the other side needs this server when it starts again."""

OF_ONE_ROOM = ("PD116", "PD152")
"""What several probes say of one room of one rank."""

_SHARES: dict[tuple[str, str], frozenset[str]] = {}
"""Cause and consequence → what they may share."""
for _rule in RULES:
    for _pair in itertools.product(_rule.causes, _rule.consequences):
        _SHARES[_pair] = _SHARES.get(_pair, frozenset()).union(_rule.shares)
_RANK = {code: number for number, code in enumerate(ORDER)}
_LEVELS = (Level.ERROR, Level.WARNING, Level.INFO)
_UNIT = re.compile(r"\b(prefill|decode) dp(\d+)\b")


_Unit = tuple[str, str, str]
"""Role, dp and server, the server "" where a finding does not say."""


class _About(NamedTuple):
    """What a finding is about."""

    rooms: frozenset[int]
    units: frozenset[_Unit]


def connect(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the same findings: each cause with its consequences behind it, which say what they follow.

    The worst come first; of those, servers that ended (FIRST).

    A finding that an earlier one says, too, is left out: the same in everything, of REPEATED and about the same units, or of
    OF_ONE_ROOM and about the same room of the same ranks.
    """
    once = _once(findings)
    about = [_about(found) for found in once]
    servers: dict[str, set[str]] = {}
    for role, _, server in (unit for one in about for unit in one.units):
        if server:
            servers.setdefault(role, set()).add(server)
    about = [_with_servers(one, servers) for one in about]
    known: dict[str, _Known] = {}
    for n, one in enumerate(once):
        known.setdefault(one.code, _Known()).add(n, about[n])
    cause_of = [_cause(one.code, about[n], known) for n, one in enumerate(once)]
    groups: dict[int, list[int]] = {}
    for n in range(len(once)):
        root = n
        while (above := cause_of[root]) is not None:
            root = above
        groups.setdefault(root, []).append(n)
    told = sorted(groups.items(), key=lambda group: (_worst(once, group[1]), once[group[0]].code not in FIRST))
    out: list[Finding] = []
    for root, members in told:
        out.append(msgspec.structs.replace(once[root], follows=""))
        out += [msgspec.structs.replace(once[n], follows=once[root].code) for n in members if n != root]
    return tuple(out)


def _worst(findings: Sequence[Finding], members: Sequence[int]) -> int:
    return min(_LEVELS.index(findings[n].level) for n in members)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    found: dict[object, Finding] = {}
    for one in findings:
        key: object = msgspec.structs.replace(one, follows="")
        if one.code in REPEATED and one.units:
            key = one.code, one.units
        elif one.code in OF_ONE_ROOM:
            key = one.code, one.rooms, one.ranks
        first = found.setdefault(key, one)
        if first is not one:
            found[key] = msgspec.structs.replace(first, rooms=tuple(dict.fromkeys((*first.rooms, *one.rooms))))
    return list(found.values())


def _about(found: Finding) -> _About:
    units: set[_Unit] = set()
    for unit in found.units:
        where, _, server = unit.partition(" of ")
        role, _, dp = where.partition(" dp")
        units.add((role, dp, server))
    if not units:
        units = {(role, dp, "") for text in (found.group, *found.ranks) for role, dp in _UNIT.findall(text)}
    return _About(frozenset(found.rooms) - {0}, frozenset(units))


def _with_servers(one: _About, servers: Mapping[str, set[str]]) -> _About:
    """Name the server where a finding does not and only one is known; of several it is not said to be any. servers: by role."""
    named: set[_Unit] = set()
    for role, dp, server in one.units:
        known = {server} if server else servers.get(role, set())
        if len(known) < 2:
            named.add((role, dp, next(iter(known), "")))
    return one._replace(units=frozenset(named))


class _Known:
    """Findings of one code, by what they are about, so that thousands need not be compared with each other."""

    def __init__(self) -> None:
        self._about: dict[int, _About] = {}
        self._rooms: dict[int, list[int]] = {}
        self._units: dict[_Unit, list[int]] = {}
        self._servers: dict[tuple[str, str], list[int]] = {}

    def add(self, number: int, one: _About) -> None:
        """Take a finding; numbers come in order."""
        self._about[number] = one
        for room in one.rooms:
            self._rooms.setdefault(room, []).append(number)
        for unit in one.units:
            self._units.setdefault(unit, []).append(number)
        for server in _servers(one):
            self._servers.setdefault(server, []).append(number)

    def first(self, shares: Collection[str], one: _About) -> int | None:
        """Return the first that shares something of ``shares`` with a finding about ``one``."""
        found: list[int] = []
        if "room" in shares:
            found += [self._rooms[room][0] for room in one.rooms if room in self._rooms]
        if "unit" in shares:
            found += [self._units[unit][0] for unit in one.units if unit in self._units]
        if "server" in shares:
            found += [self._servers[server][0] for server in _servers(one) if server in self._servers]
        if "rooms" in shares and one.rooms:
            those = self._rooms.get(next(iter(one.rooms)), ())
            found += itertools.islice((n for n in those if one.rooms <= self._about[n].rooms), 1)
        if "units" in shares and one.units:
            those = self._units.get(next(iter(one.units)), ())
            found += itertools.islice((n for n in those if one.units <= self._about[n].units), 1)
        return min(found, default=None)


def _servers(one: _About) -> set[tuple[str, str]]:
    return {(role, server) for role, _, server in one.units}


def _cause(code: str, one: _About, known: Mapping[str, _Known]) -> int | None:
    """Return which finding explains one of this code: of several the one that comes first in ORDER. known: by code."""
    for cause in ORDER[: _RANK.get(code, len(ORDER))]:
        shares = _SHARES.get((cause, code))
        if shares and cause in known and (found := known[cause].first(shares, one)) is not None:
            return found
    return None
