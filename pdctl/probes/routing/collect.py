"""Gets what ``verify-routing`` judges: live ranks' rooms and settings, events of those rooms, and the bootstrap servers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.probes.routing import GRACE_S
from pdctl.probes.routing.addresses import beside_server, means_itself, own_address
from pdctl.probes.routing.bootstrap import Question, ask, split
from pdctl.probes.routing.judge import pause_s
from pdctl.probes.routing.model import FAKE, Fault, Look, Place, RankView, ServerView, waits
from pdctl.protocol.model import ATTACHED, EventKind
from pdctl.protocol.processes import network_of
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.requests import NOTES_CONFLICTS, QUERY_FORCED, REGISTERS_EVERY_ROOM, RoomEntry
from pdctl.recording.requests import alive_ns, doubts, moments, rooms_of, seen_until_ns

if TYPE_CHECKING:
    from pdctl.probes.view import View

MAX_PLACES = 256
MAX_SERVERS = 64
"""Bootstrap servers that are asked in one look, each on a thread: clients and ranks name them."""
DECODE_WAITS_S = 5.0
"""So long a decode rank waits for a bootstrap server: one that is slower than that is of no use to it."""
EVENTS = (
    EventKind.DP_REGISTER,
    EventKind.DP_QUERY,
    EventKind.DP_ANSWER,
    EventKind.FAILURE,
    EventKind.STATE,
    EventKind.ENQUEUE,
    EventKind.DEQUEUE,
    EventKind.LOOKUP,
)
_ONCE = "routing"
_INSTEAD = "run pdctl verify-routing there, or with --bootstrap HOST:PORT, where this host reaches that server"
_SEAMS = (NOTES_CONFLICTS, REGISTERS_EVERY_ROOM, QUERY_FORCED)


@dataclass(frozen=True)
class Seen:
    """The look that counts, and the one before it where something differed and has to last."""

    look: Look
    first: Look | None = None


def twice(view: View, *, grace_s: float, rooms: Sequence[int] = (), instead: Sequence[str] = ()) -> Seen:
    """Return one look, or a second one after a first in which something differed; the rest is as :func:`collect` has it.

    grace_s: how long a difference must last.
    """
    if grace_s == GRACE_S and not (rooms or instead):
        return view.once(_ONCE, lambda: _twice(view, grace_s))
    return _twice(view, grace_s, rooms, instead)


def _twice(view: View, grace_s: float, rooms: Sequence[int] = (), instead: Sequence[str] = ()) -> Seen:
    first = collect(view, rooms=rooms, instead=instead)
    pause = pause_s(first, grace_s)
    if pause is None:
        return Seen(first)
    view.pause(pause)
    return Seen(collect(view.again(), rooms=rooms, instead=instead), first)


def usual(view: View) -> Seen:
    """Return what :func:`twice` does by default, once for all probes of a command; who has not looked before asks anew."""
    return view.once(_ONCE, lambda: _twice(view if view.recorded else view.again(), GRACE_S))


def collect(view: View, *, rooms: Sequence[int] = (), instead: Sequence[str] = ()) -> Look:
    """Return one look at every rank and at the bootstrap servers they name.

    rooms: look at these as well as at those that wait, wherever they are; the judge tells of them alone. instead: addresses
    to ask in place of those the ranks name. One server may take as long as one rank, or as decode would wait; all are asked
    at the same time.
    """
    ranks = [rank for rank in view.ranks if rank.identity.role in ("prefill", "decode")]
    views = (_recorded if view.recorded else _views)(ranks, view)
    wanted = {entry.room for one in views for entry in waiting(one)} | set(rooms)
    views = [_with_events(rank, one, wanted, view) for rank, one in zip(ranks, views, strict=True)]
    # After the ranks: what prefill holds by now has been registered by now, if it ever is.
    servers: dict[tuple[str, str], ServerView] = {}
    if instead or not view.recorded:  # who is at an address now is not who was there then
        servers = _servers(views, wanted, tuple(instead), view.left(max(view.client.rank_timeout_s, DECODE_WAITS_S)))
    views = [_with_failures(rank, one, servers, view) for rank, one in zip(ranks, views, strict=True)]
    return Look(tuple(views), servers, tuple(dict.fromkeys(rooms)), tuple(instead), time.monotonic())


def waiting(view: RankView) -> Iterable[RoomEntry]:
    """Yield the rank's entries that wait to be routed, or for the side they were routed to."""
    for entry in view.rooms.rooms if view.rooms is not None else ():
        if waits(entry):
            yield entry


def _views(ranks: Sequence[FoundRank], view: View) -> list[RankView]:
    answers = view.rooms(ranks)
    live = [answer.rank for answer in answers if answer.body is not None]
    settings = {id(a.rank): a.body for a in view.settings(live)}
    statuses = {id(a.rank): a.body for a in view.status(live)}
    views = []
    for answer in answers:
        rank, status = answer.rank, statuses.get(id(answer.rank))
        identity = status.identity if status is not None else rank.identity
        seams = {seam.name: seam.present for seam in status.seams if seam.name in _SEAMS} if status is not None else {}
        broken = status is not None and "events.routing" in status.hooks_removed
        views.append(
            RankView(
                identity=identity,
                state=rank.state,
                silence=answer.reason or (answer.silence.value if answer.body is None else ""),
                rooms=answer.body,
                settings=settings.get(id(rank)),
                seams=seams,
                events_off="pdctl's hook of registrations and queries failed in this rank" if broken else "",
                network=_network(rank),
                up_s=rank.up_s(answer.body.mono_ns if answer.body is not None else 0),
            )
        )
    return views


def _recorded(ranks: Sequence[FoundRank], view: View) -> list[RankView]:
    """Return what recordings tell of ranks that were not asked, each at the moment when it was last seen."""
    answers = [view.recording(rank) for rank in ranks]
    ends = moments(answer.body for answer in answers if answer.body is not None)
    views = []
    for answer in answers:
        rank, recording = answer.rank, answer.body
        if recording is None:
            views.append(RankView(rank.identity, rank.state, answer.reason))
            continue
        end_ns = ends[id(recording)]
        seen_ns = seen_until_ns(recording, end_ns, alive_ns(rank))
        problems = doubts(recording, (end_ns - seen_ns) / 1e9)
        up_s = max(0.0, (end_ns - recording.start_mono_ns) / 1e9) if rank.identity.loaded_by != ATTACHED else None
        rooms = rooms_of(recording, seen_ns)
        views.append(RankView(rank.identity, rank.state, rooms=rooms, problems=problems, up_s=up_s))
    return views


def _network(rank: FoundRank) -> str:
    here = rank.process.runs_since(rank.identity.proc_start)  # and is no other process that has its pid here
    return network_of(rank.identity.pid) if here else ""


def _with_events(rank: FoundRank, one: RankView, rooms: Collection[int], view: View) -> RankView:
    decode = one.identity.role == "decode" and one.rooms is not None  # its lookups are of no room
    if one.events_off or not (rooms or decode):
        return one
    events, why = view.events(rank, {*rooms, *((0,) if decode else ())}, EVENTS)
    return replace(one, events=events, events_off=why if rooms else "")


def _with_failures(
    rank: FoundRank, one: RankView, servers: Mapping[tuple[str, str], ServerView], view: View
) -> RankView:
    """Return the rank with why its engine failed rooms, where a bootstrap server gives it no answer that it can use."""
    asked = [server for a in addresses_of(one) if (server := servers.get((one.network, a))) is not None]
    useless = any(not server.usable for server in asked)
    if one.identity.role != "decode" or not (useless or one.missed):
        return one
    failures, _ = view.events(rank, None, (EventKind.FAILURE, EventKind.ABORT))
    rooms = {event.room for event in failures if event.kind == EventKind.FAILURE}
    entered, _ = view.events(rank, rooms, (EventKind.ENQUEUE,)) if rooms else ((), "")
    return replace(one, failures=(*entered, *failures))


# ---- bootstrap servers -----------------------------------------------------------------------------------------------


def _servers(
    views: Sequence[RankView],
    rooms: Collection[int],
    instead: tuple[str, ...],
    deadline_s: float,
) -> dict[tuple[str, str], ServerView]:
    addresses = _addresses(views)
    places = {key: _places(views, key) for key in addresses}
    if instead:
        everywhere = tuple(dict.fromkeys(place for found in places.values() for place in found))
        asked = [Question(address, rooms=tuple(rooms), places=everywhere) for address in instead]
        return {("", view.address): view for view in ask(asked, deadline_s, DECODE_WAITS_S)}
    own = network_of(os.getpid())
    there = set().union(*(view.rooms.rooms.column("room") for view in views if view.rooms is not None))
    nowhere = set(rooms) - there  # whoever may still know them
    questions: list[Question] = []
    refused: dict[tuple[str, str], ServerView] = {}
    for (network, address), near in addresses.items():
        why = _unsafe(network, address, near)
        if why:
            refused[network, address] = ServerView(address, network, silence=why, fault=Fault.OTHER)
            continue
        if len(questions) >= MAX_SERVERS:
            refused[network, address] = ServerView(
                address, network, silence=f"not asked: more than {MAX_SERVERS} are named", fault=Fault.OTHER
            )
            continue
        enter = near.identity.pid if network and own and network != own else 0
        mine = _rooms_at(views, address, network) & set(rooms) | nowhere
        questions.append(Question(address, network, enter, tuple(sorted(mine)), places[network, address]))
    return {**refused, **{(view.network, view.address): view for view in ask(questions, deadline_s, DECODE_WAITS_S)}}


def _addresses(views: Sequence[RankView]) -> dict[tuple[str, str], RankView]:
    """Return (network namespace, address) of every bootstrap server that a rank names → one of those ranks."""
    found: dict[tuple[str, str], RankView] = {}
    for view in views:
        for address in addresses_of(view):
            found.setdefault((view.network, address), view)
    named = {(network, address.rpartition(":")[2] if network else address) for network, address in found}
    for view in views:  # a server that nobody has needed yet is known to its own prefill ranks only
        address = own_address(view)
        which = address.rpartition(":")[2] if view.network else address
        if address and beside_server(view) and (view.network, which) not in named:
            found.setdefault((view.network, address), view)
    return found


def addresses_of(view: RankView) -> list[str]:
    """Return the addresses of the bootstrap servers that the rank uses, without those of warm-ups."""
    if view.rooms is None:
        return []
    named = dict.fromkeys([*view.rooms.rooms.distinct("bootstrap"), *view.rooms.prefills, *view.missed])
    return [address for address in named if address and not address.startswith(FAKE)]


def _unsafe(network: str, address: str, view: RankView) -> str:
    """Return why asking this address from here could reach somebody else's server, "" when it can't."""
    try:
        itself = means_itself(split(address)[0])
    except ValueError:
        itself = ""
    if not itself:
        return ""
    if view.identity.host != socket.gethostname():
        return f"it is {itself} of {view.identity.host}, and would mean this host here: {_INSTEAD}"
    if not network:
        return f"it is {itself}, and the network of this rank's process can't be seen from here: {_INSTEAD}"
    return ""


def _rooms_at(views: Sequence[RankView], address: str, network: str) -> set[int]:
    return {
        room
        for view in views
        if view.rooms is not None and view.network == network
        for room, bootstrap in view.rooms.rooms.rows("room", "bootstrap")
        if bootstrap == address
    }


def _places(views: Sequence[RankView], key: tuple[str, str]) -> tuple[Place, ...]:
    """Return the prefill ranks that this server should know: those whose rooms, or whose settings, name it."""
    network, address = key
    found: dict[Place, None] = {}
    for view in views:
        for peer in (view.rooms.peers or ()) if view.rooms is not None and view.network == network else ():
            if peer.bootstrap == address and peer.pp >= 0:  # where decode takes it to listen
                found[peer.dp, peer.cp, peer.tp, peer.pp] = None
        own = own_address(view)
        same = own.rpartition(":")[2] == address.rpartition(":")[2] if own else False
        if view.identity.role == "prefill" and view.network == network and (same or address in addresses_of(view)):
            i = view.identity
            found[i.dp, i.cp, i.tp, i.pp] = None
    return tuple(found)[:MAX_PLACES]
