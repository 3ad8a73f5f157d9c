"""Tells apart requests of several pairs of servers that have one room. Pure.

A room is unique only between servers that talk to each other. Two deployments on one host, or in one store, may have it both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pdctl.probes.routing.addresses import is_another
from pdctl.probes.routing.facts import Decoding, Ranks, RoomFacts
from pdctl.protocol.requests import RoomEntry
from pdctl.targets.servers import server_of


def pairs(facts: RoomFacts) -> Iterator[RoomFacts]:
    """Yield what was said of a room, by the prefill ranks that decode ranks may mean: all of it where these are the same."""
    meant: dict[tuple[int, ...], list[Decoding]] = {}
    for decoding in facts.decode:
        may = tuple(n for n, (ranks, held) in enumerate(facts.prefill) if not _apart(ranks, held, decoding))
        meant.setdefault(may, []).append(decoding)
    for may, decode in meant.items():
        whole = len(may) == len(facts.prefill) and len(decode) == len(facts.decode)
        yield facts if whole else _part(facts, [facts.prefill[n] for n in may], decode)


def _apart(ranks: Ranks, held: RoomEntry, decoding: Decoding) -> bool:
    """Return whether what prefill ranks hold is surely another request than the one that decode ranks have."""
    taken = decoding.entries[0]
    if held.rid and held.rid == taken.rid:
        return False
    return is_another(taken.bootstrap, ranks.first, decoding.view, held.bootstrap)


def _part(facts: RoomFacts, prefill: list[tuple[Ranks, RoomEntry]], decode: list[Decoding]) -> RoomFacts:
    """Return the facts with these ranks alone, and with the bootstrap servers and events that are theirs."""
    named = {(d.view.network, d.entries[0].bootstrap) for d in decode}
    asked = tuple(server for server in facts.servers if (server.network, server.address) in named)
    views = [*(ranks.first for ranks, _ in prefill), *(d.view for d in decode)]
    ours = {server_of(view.identity) for view in views}
    part = replace(
        facts,
        prefill=prefill,
        decode=decode,
        servers=asked or facts.servers,  # those that the user named are under no rank's address
        address=decode[0].entries[0].bootstrap,
        events=tuple((view, event) for view, event in facts.events if server_of(view.identity) in ours),
    )
    part.size, part.follows = part.find_size()
    part.registered = part.find_registered()
    return part
