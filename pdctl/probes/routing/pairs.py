"""Tells apart requests of several pairs of servers that have one room. Pure.

A room is unique only between servers that talk to each other. Two deployments on one host, or in one store, may have it both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from pdctl.probes.routing.addresses import is_another, is_named, is_one
from pdctl.probes.routing.facts import Decoding, Ranks, RoomFacts
from pdctl.probes.routing.model import RankView, ServerView, plain_of
from pdctl.protocol.requests import RoomEntry
from pdctl.targets.servers import server_of

Request = tuple[Ranks, RoomEntry]
"""A room on ranks that say the same of it."""
MOST = 8
"""Bootstrap servers of one room on a rank that are told apart: an engine has one. PD127 counts the requests of all."""


def pairs(facts: RoomFacts) -> Sequence[RoomFacts]:
    """Return what was said of a room, by the prefill ranks that decode ranks may mean: all of it where these are the same.

    What prefill ranks have and no decode rank means comes last, by server.
    """
    if facts.pairs is None:
        facts.pairs = list(_pairs(_few(facts)))
    return facts.pairs


def _pairs(facts: RoomFacts) -> Iterator[RoomFacts]:
    meant: dict[tuple[tuple[int, ...], str], list[Decoding]] = {}
    for decoding in facts.decode:
        for taken in _by_address(decoding):
            address = _address(taken, facts)
            may = tuple(n for n, held in enumerate(facts.prefill) if not _apart(held, taken, address))
            meant.setdefault((may, "" if may else address), []).append(taken)
    wanted = {n for may, _ in meant for n in may}
    left = [held for n, held in enumerate(facts.prefill) if n not in wanted]
    parts = [([facts.prefill[n] for n in may], decode) for (may, _), decode in meant.items()]
    parts += [(held, []) for held in together(left)]
    everyone = _named(facts.prefill, facts.decode)
    for prefill, decode in parts or [([], [])]:
        yield _part(facts, prefill, decode, everyone, alone=len(parts) <= 1)


def _few(facts: RoomFacts) -> RoomFacts:
    """Return the facts with what each rank has of the first MOST bootstrap servers: all of it is compared."""
    servers: dict[int, set[str]] = {}

    def is_kept(ranks: Ranks, entry: RoomEntry) -> bool:
        mine = servers.setdefault(id(ranks), set())
        if len(mine) < MOST:
            mine.add(entry.bootstrap)
        return entry.bootstrap in mine

    prefill = [held for held in facts.prefill if is_kept(*held)]
    decode = [
        Decoding(one.ranks, [entry for entry in one.entries if is_kept(one.ranks, entry)]) for one in facts.decode
    ]
    all_kept = all(len(few.entries) == len(one.entries) for few, one in zip(decode, facts.decode, strict=True))
    return facts if all_kept and len(prefill) == len(facts.prefill) else replace(facts, prefill=prefill, decode=decode)


def together(requests: Sequence[Request]) -> list[list[Request]]:
    """Return what one side has of a room, those together that have one server, request id or bootstrap server."""
    first: dict[tuple[object, ...], int] = {}
    places: dict[str, dict[tuple[str, str], int]] = {}
    root = list(range(len(requests)))

    def of(n: int) -> int:
        while root[n] != n:
            root[n] = n = root[root[n]]
        return n

    for n, (ranks, entry) in enumerate(requests):
        view = ranks.first
        for key in (("server", server_of(view.identity)), ("rid", entry.rid or n)):
            root[of(n)] = of(first.setdefault(key, n))
        if is_named(entry.bootstrap):
            at = places.setdefault(plain_of(entry.bootstrap), {})
            root[of(n)] = of(at.setdefault((view.network, view.identity.host), n))
    for at in places.values():
        for one, other in combinations(at.values(), 2):
            (ranks, entry), (others, known) = requests[one], requests[other]
            if of(one) != of(other) and is_one(entry.bootstrap, ranks.first, known.bootstrap, others.first):
                root[of(one)] = of(other)
    groups: dict[int, list[Request]] = {}
    for n, request in enumerate(requests):
        groups.setdefault(of(n), []).append(request)
    return list(groups.values())


def units_of(facts: RoomFacts) -> frozenset[str]:
    """Return the data-parallel ranks that have the room, each with its server (``Identity.unit``)."""
    ranks = [*(ranks for ranks, _ in facts.prefill), *(one.ranks for one in facts.decode)]
    return frozenset(one.first.identity.unit for one in ranks)


def _by_address(decoding: Decoding) -> list[Decoding]:
    """Return what decode ranks have of a room, by the bootstrap server that it names, where there are several."""
    entries = decoding.entries
    named = dict.fromkeys(entry.bootstrap for entry in entries if is_named(entry.bootstrap))
    if len(named) < 2:
        return [decoding]
    lots = [[entry for entry in entries if entry.bootstrap == address] for address in named]
    unnamed = [entry for entry in entries if entry.bootstrap not in named]
    return [Decoding(decoding.ranks, lot) for lot in (*lots, unnamed) if lot]


def _address(taken: Decoding, facts: RoomFacts) -> str:
    """Return the bootstrap server that decode ranks name, else the only one that ranks of their server name for the room."""
    own = next((entry.bootstrap for entry in taken.entries if is_named(entry.bootstrap)), "")
    if own:
        return own
    server = server_of(taken.view.identity)
    mates = [one for one in facts.decode if server_of(one.view.identity) == server]
    named = {entry.bootstrap for one in mates for entry in one.entries if is_named(entry.bootstrap)}
    return named.pop() if len(named) == 1 else ""


def _apart(held: Request, taken: Decoding, address: str) -> bool:
    """Return whether what prefill ranks hold is surely another request than the one that decode ranks have."""
    ranks, entry = held
    if entry.rid and entry.rid == taken.entries[0].rid:
        return False
    return is_another(address, ranks.first, taken.view, entry.bootstrap)


def _part(
    facts: RoomFacts,
    prefill: list[Request],
    decode: list[Decoding],
    everyone: Sequence[tuple[RankView, str]],
    *,
    alone: bool,
) -> RoomFacts:
    """Return the facts with these ranks alone, and with the bootstrap servers and events that are theirs.

    Of prefill these are none where decode does not tell which of several requests it means. alone: there are no other ranks.
    """
    named = _named(prefill, decode)
    # Those that no rank names, the user named.
    servers = [one for one in facts.servers if alone or _names(named, one) or not _names(everyone, one)]
    ours = {server_of(view.identity) for view, _ in named}
    theirs = {server_of(view.identity) for view, _ in everyone} - ours
    events = [
        (view, event)
        for view, event in facts.events
        if (server := server_of(view.identity)) in ours or not (prefill or server in theirs)
    ]
    if decode and len(together(prefill)) > 1 and not any(_address(one, facts) for one in decode):
        servers, events = [], [(view, event) for view, event in events if view.identity.role == "decode"]
    if alone and len(servers) == len(facts.servers) and len(events) == len(facts.events):
        return facts
    part = replace(
        facts,
        prefill=prefill,
        decode=decode,
        servers=tuple(servers),
        address=next((address for _, address in reversed(named) if address), ""),
        events=tuple(events),
    )
    part.size, part.follows = part.find_size()
    part.registered = part.find_registered()
    return part


def _named(prefill: Sequence[Request], decode: Sequence[Decoding]) -> list[tuple[RankView, str]]:
    """Return ranks and the bootstrap servers that their requests name."""
    held = [(ranks.first, entry.bootstrap) for ranks, entry in prefill]
    return [*held, *((asking.view, entry.bootstrap) for asking in decode for entry in asking.entries)]


def _names(named: Sequence[tuple[RankView, str]], server: ServerView) -> bool:
    return any(server.address == address and server.network in ("", view.network) for view, address in named)
