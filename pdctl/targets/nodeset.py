"""Fold many ranks into a short text, ``decode dp0 tp0-6,8-63``, and unfold it. Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pdctl.protocol.model import Identity


class Place(NamedTuple):
    """A rank's place: ``name`` is its role, or its server where several have that role."""

    name: str
    dp: int
    pp: int
    cp: int
    tp: int


AXES = ("dp", "pp", "cp", "tp")
_TERM = re.compile(r"(?P<name>.*?)(?P<axes>(?:(?:^| )(?:dp|pp|cp|tp)[0-9][0-9,-]*)*)", re.ASCII | re.DOTALL)
_LABEL = re.compile(r"(?:prefill|decode) dp[0-9]{1,9} pp[0-9]{1,9}(?: cp[0-9]{1,9})? tp[0-9]{1,9}", re.ASCII)
_TAIL = re.compile(
    r"(?P<place>.*?)(?P<of> of .+| (?=[^ ]+[@:])[^ ]+(?: #[0-9]+)?| #[0-9]+)?(?: \(DP[0-9]+(?: PP[0-9]+)? TP[0-9]+\))?",
    re.ASCII | re.DOTALL,
)
"""A place with what may follow it: its server, and what the engine's log calls it."""
MOST_PLACES = 1 << 15
"""Places that a text may stand for, and all texts that are joined: a server may have any name."""
_PID = re.compile(r"\bpid [0-9]+", re.ASCII)
_AXIS = re.compile(r"(dp|pp|cp|tp)([0-9][0-9,-]*)", re.ASCII)


def numbers(values: Iterable[int]) -> str:
    """Return ``0-6,8-63``: numbers in order, each once; two neighbours are written out (``0,1``)."""
    parts: list[str] = []
    run: list[int] = []
    for value in [*sorted(set(values)), None]:
        if run and (value is None or value != run[-1] + 1):
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
            run = []
        if value is not None:
            run.append(value)
    return ",".join(parts)


def span(values: Iterable[int]) -> str:
    """Return ``3-17``, the least and the greatest of some numbers, or ``3`` where they are one."""
    known = list(values)
    return str(known[0]) if min(known) == max(known) else f"{min(known)}-{max(known)}"


def parse_numbers(text: str) -> set[int]:
    """Return the numbers that :func:`numbers` folded. Raises ValueError for other text, and for more than MOST_PLACES."""
    found: set[int] = set()
    left = MOST_PLACES
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        left -= max(1, int(last) - int(first) + 1) if dash else 1
        if left < 0:
            raise ValueError(f"{text[:80]} has more than {MOST_PLACES} numbers")
        found.update(range(int(first), int(last) + 1) if dash else (int(first),))
    return found


def terms(places: Iterable[Place], axes: Collection[str] = AXES, *, named: bool = True) -> list[str]:
    """Return ``places``, each once, as few terms: ``decode dp0-1 tp0-6,8-63``.

    axes: the axes to show. Coordinates on other axes, and unknown ones (-1), are not shown; :func:`unfold` takes them as 0.
    named: begin each term with the name.
    """
    # tp of each (name, dp, pp, cp); then one axis after another, places that differ on that axis only become one.
    folded: dict[tuple[Any, ...], set[int]] = {}
    for place in places:
        folded.setdefault((place.name, place.dp, place.pp, place.cp), set()).add(place.tp)
    rows: list[tuple[Any, ...]] = [(*key, frozenset(tps)) for key, tps in folded.items()]
    for at in (3, 2, 1):
        merged: dict[tuple[Any, ...], set[int]] = {}
        for row in rows:
            merged.setdefault((*row[:at], *row[at + 1 :]), set()).add(row[at])
        rows = [(*key[:at], frozenset(values), *key[at:]) for key, values in merged.items()]
    found = []
    for name, *sets in sorted(rows, key=lambda row: (row[0], [sorted(values) for values in row[1:]])):
        parts = [
            f"{axis}{numbers(values)}"
            for axis, values in zip(AXES, sets, strict=True)
            if axis in axes and min(values) >= 0
        ]
        found.append(" ".join([name, *parts] if named and name else parts))
    return list(dict.fromkeys(found))


def fold(places: Iterable[Place], axes: Collection[str] = AXES, *, named: bool = True) -> str:
    """Return :func:`terms` as one text."""
    return "; ".join(terms(places, axes, named=named))


def unfold(text: str, most: int = MOST_PLACES) -> set[Place]:
    """Return the places that :func:`fold` folded, axes it left out being 0. Raises ValueError for other text, and for more."""
    found: set[Place] = set()
    for term in filter(None, text.split("; ")):
        match = _term(term)
        sets = {axis: parse_numbers(values) for axis, values in _AXIS.findall(match["axes"])}
        dps, pps, cps, tps = (sets.get(axis, {0}) for axis in AXES)
        if len(found) + len(dps) * len(pps) * len(cps) * len(tps) > most:
            raise ValueError(f"{term[:80]} has more than {most} places")
        found.update(Place(match["name"], dp, pp, cp, tp) for dp in dps for pp in pps for cp in cps for tp in tps)
    return found


def axes_of(text: str) -> tuple[str, ...]:
    """Return the axes that a text names behind its name: dp and tp of ``decode dp0 tp0-7``."""
    return tuple(dict.fromkeys(axis for term in text.split("; ") for axis, _ in _AXIS.findall(_term(term)["axes"])))


def _term(text: str) -> re.Match[str]:
    match = _TERM.fullmatch(text)
    assert match is not None  # every part of it may be empty
    return match


def join(texts: Iterable[str]) -> str:
    """Return places, folded or not, as one text: ``decode dp0`` and ``decode dp1`` as ``decode dp0,1``.

    Those that name the same axes and the same server (``… of SERVER``, ``… HOST:PORT #1``) become one. What the engine's log
    calls them is left out. Others are named as they are.
    """
    alike: dict[tuple[str, tuple[str, ...]], set[Place]] = {}
    others: list[str] = []
    left = MOST_PLACES
    for text in dict.fromkeys(texts):
        match = _TAIL.fullmatch(text)
        assert match is not None  # every part of it may be empty
        try:
            found = unfold(match["place"], left)
        except ValueError:
            found = set()
        left -= len(found)
        if found:
            alike.setdefault((match["of"] or "", axes_of(match["place"])), set()).update(found)
        else:
            others.append(text)
    return "; ".join([*(f"{fold(places, axes)}{of}" for (of, axes), places in alike.items()), *others])


MOST_LISTED = 4
"""Places that are named one by one."""


def listed(texts: Sequence[str]) -> str:
    """Return few places with commas between, more than MOST_LISTED of them folded (:func:`join`)."""
    return ", ".join(texts) if len(texts) <= MOST_LISTED else join(texts)


MOST_HOSTS = 5
"""Hosts, and pods, that are named one by one."""


def none_seen_on(hosts: Iterable[str]) -> str:
    """Return that these hosts and pods (``pod/NAME``) give no rank: ``none seen on hosts a, b, and on pod c``."""
    kinds: dict[str, list[str]] = {"host": [], "pod": []}
    for host in hosts:
        name = host.removeprefix("pod/")
        kinds["host" if name == host else "pod"].append(name)
    said = []
    for kind, names in kinds.items():
        more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
        said += [f"on {kind}{'s'[: len(names) != 1]} {', '.join(names[:MOST_HOSTS])}{more}"] if names else []
    return f"none seen {', and '.join(said)}"


def brief(text: str) -> str:
    """Return a folded text without the names of many servers that have the same places: ``dp0-7 of 8 servers (a, b, …)``."""
    found: dict[str, list[str]] = {}
    for term in text.split("; "):
        match = _term(term)
        found.setdefault(match["axes"].strip(), []).append(match["name"])
    said = []
    for axes, names in found.items():
        if len(names) <= MOST_LISTED:
            said += [" ".join(filter(None, (name, axes))) for name in names]
        else:
            some = f"{', '.join(names[:2])}, …, {names[-1]}"
            said.append(f"{axes} of {len(names)} servers ({some})" if axes else f"{len(names)} servers ({some})")
    return "; ".join(said)


def fold_lines(lines: Iterable[str]) -> list[str]:
    """Return lines ``RANK: TEXT``, and others, with one line for all ranks of the same text: ``decode dp0 tp0-41: TEXT``.

    Texts that differ in a process id only are the same; the line has the first one's. RANK: a label.
    """
    names: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(": ")
        of_rank = bool(colon) and _LABEL.fullmatch(name) is not None
        key = _PID.sub("pid", text) if of_rank else line
        names.setdefault(key, []).extend([name] if of_rank else [])
        texts.setdefault(key, text if of_rank else line)
    folded = []
    for key, text in texts.items():
        among = list(dict.fromkeys(names[key]))
        more = f" (and {len(among) - 1} more pids)" if len(among) > 1 and _PID.search(text) else ""
        folded.append(f"{join(among)}: {text}{more}" if len(among) > 1 else f"{among[0]}: {text}" if among else text)
    return folded


def shown_axes(identities: Iterable[Identity]) -> tuple[str, ...]:
    """Return the axes worth naming: dp and tp always, the others where a server has more than one on them."""
    many = {
        axis
        for one in identities
        for axis in ("pp", "cp")
        if getattr(one, f"{axis}_size") > 1 or getattr(one, axis) > 0
    }
    return tuple(axis for axis in AXES if axis in ("dp", "tp") or axis in many)


Server = tuple[str, str, str, str]


def server(one: Identity) -> Server:
    """Return what the ranks of one start of one server have in common."""
    return one.role, one.cluster, one.service, one.instance


def server_names(identities: Iterable[Identity]) -> Mapping[Server, str]:
    """Return a short name of each server start: its role, else its service, else with the end of its instance.

    If neither server nor coordinates of a rank are known, its name is its service: its endpoint, or its process.
    """
    among = list(identities)
    alone = {server(one) for one in among if one.tp < 0}
    servers = sorted({server(one) for one in among} - alone)
    names: dict[Server, str] = {one: one[2] for one in alone}
    roles = Counter(role for role, _, _, _ in servers)
    services = Counter((role, service) for role, _, service, _ in servers)
    for one in servers:
        role, cluster, service, instance = one
        if roles[role] == 1:
            names[one] = role
        elif services[role, service] == 1:
            names[one] = service
        else:
            names[one] = f"{service} ({instance.rpartition('/')[2] or cluster})"
    return names


def place(one: Identity, names: Mapping[Server, str]) -> Place:
    """Return the rank's place, called as ``names`` says."""
    return Place(names[server(one)], one.dp, one.pp, one.cp, one.tp)
