"""What each side uses of the other, against who is there now: a server replaced behind its address, two behind one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pdctl.probes.queues.formatting import names
from pdctl.probes.routing.addresses import is_another, is_target, listens_on, serves, setting, shared
from pdctl.probes.routing.facts import short_place
from pdctl.probes.routing.model import Look, Place, RankView, place_of
from pdctl.probes.routing.suspects import Suspect
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.requests import Peer

Request = tuple[RankView, str, str]
"""A decode rank with a request, the request's id, and the bootstrap server that it names."""
MOST_OF_ROOM = 64
"""Requests of decode that one of prefill is compared with. A room that more have is taken to be there."""
SENT = (KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING)
"""States of a room whose addresses decode has sent to the prefill process that was there then."""


_GIVES_UP = "decode's heartbeat takes to give it up (two misses, 10 s, by default)"


def suspects_of_peers(look: Look) -> Iterator[Suspect]:
    """Yield servers that were replaced while the other side goes on using what was there before, and two that share a name."""
    replaced = [*_prefill_replaced(look), *_decode_replaced(look)]
    yield from replaced
    seen = {(suspect.cluster, room) for suspect in replaced for room in suspect.rooms}
    for role, other in (("decode", "prefill"), ("prefill", "decode")):
        yield from _started_after(look, role, other, seen)
    yield from _shared(look)


# ---- prefill was replaced, and decode uses the process before ----------------------------------------------------------


@dataclass
class _Stale:
    """One port of a prefill rank that is elsewhere now, and the decode ranks that use it. rank: who is there, None unseen."""

    label: str
    port: int
    now: int
    rank: RankView | None
    views: list[RankView] = field(default_factory=list)
    rooms: dict[int, None] = field(default_factory=dict)
    used: int = 0


def _prefill_replaced(look: Look) -> Iterator[Suspect]:
    prefill = [view for view in look.views if view.identity.role == "prefill" and view.rooms is not None]
    silent = {  # who runs and does not answer may listen there
        place_of(view)
        for view in look.views
        if view.identity.role == "prefill" and view.state in ("live", "outside") and not listens_on(view)
    }
    found: dict[tuple[str, str, str], dict[tuple[int, Place], _Stale]] = {}
    for view in look.views:
        if view.identity.role != "decode" or view.rooms is None:
            continue
        for peer in view.rooms.peers or ():
            if peer.pp < 0 or not peer.bootstrap:
                continue
            place = (peer.dp, peer.cp, peer.tp, peer.pp)
            now, rank = _there_now(look, view, peer, place, prefill)
            if now in (0, peer.port) or any(is_target(peer, one, view) for one in prefill) or place in silent:
                continue
            ports = found.setdefault((view.identity.cluster, view.identity.service, peer.bootstrap), {})
            label = rank.identity.label if rank is not None else f"prefill dp{peer.dp} pp{peer.pp} tp{peer.tp}"
            stale = ports.setdefault((peer.port, place), _Stale(label, peer.port, now, rank))
            stale.views.append(view)
            stale.rooms.update(dict.fromkeys(peer.rooms))
            stale.used = max(stale.used, peer.used)
    for (cluster, service, address), ports in found.items():
        yield _replaced(cluster, service, address, sorted(ports.values(), key=lambda one: one.label))


def _there_now(
    look: Look, view: RankView, peer: Peer, place: Place, prefill: Sequence[RankView]
) -> tuple[int, RankView | None]:
    """Return where the prefill rank of a place listens now, by the bootstrap server or by itself, and the rank. 0: unknown."""
    server = look.server(view, peer.bootstrap)
    registered = server.routes.get(place, 0) if server is not None else 0
    there = [
        one
        for one in prefill
        if place_of(one) == place
        and listens_on(one)
        and (listens_on(one) == registered or (one.identity.cp_size <= 1 and serves(one, view, peer.bootstrap)))
    ]
    rank = there[0] if len(there) == 1 else None
    if registered > 0:
        return registered, rank if rank is not None and listens_on(rank) == registered else None
    return (listens_on(rank), rank) if rank is not None else (0, None)


def _replaced(cluster: str, service: str, address: str, ports: Sequence[_Stale]) -> Suspect:
    """ports: all that the ranks of one decode server still use of the prefill server behind ``address``."""
    one, rank = ports[0], ports[0].rank
    rooms = dict.fromkeys(room for stale in ports for room in stale.rooms)
    waiting = max(len(rooms), *(stale.used for stale in ports))
    views = {id(view): view for stale in ports for view in stale.views}
    if rank is None:
        began, there = f"The prefill server behind {address} has registered anew", "is registered at"
    else:
        ago = f" {seconds(rank.up_s)} ago" if rank.up_s is not None else " anew"
        began, there = f"{rank.identity.service} was started{ago}", f"(pid {rank.identity.pid} now) listens on"
    more = len({stale.label for stale in ports}) - 1
    alike = f", and so it is for {more} more rank{'s'[: more != 1]}" if more else ""
    summary = (
        f"{began}; {names(map(short_place, one.views))} of {service} still send{'s' * (len(one.views) == 1)} to port"
        f" {one.port} of the process before. {one.label} {there} port {one.now}{alike}."
    )
    if waiting:
        wait = f"{waiting} request{'s'[: waiting != 1]} wait{'s'[: waiting == 1]}"
        summary += f" {wait} for an answer that will not come, and so will each new one."
    else:
        summary += " The next request will wait for an answer that can't come."
    seen = {id(stale.rank): stale.rank for stale in ports if stale.rank is not None}
    return Suspect(
        "PD144",
        summary,
        f"{address} > {service}",
        rooms=tuple(rooms),
        ranks=(*(view.identity.label for view in views.values()), *(found.identity.label for found in seen.values())),
        evidence=tuple(
            f"{view.identity.label} uses port {stale.port} for {stale.label}, which "
            + (f"listens on port {stale.now}" if stale.rank is not None else f"{address} has at port {stale.now}")
            + "; no rank that answers listens on the other"
            for stale in ports[:_SHOWN]
            for view in stale.views[:_SHOWN]
        ),
        cluster=cluster,
        passing=True,
        units=tuple(view.identity.unit for view in (*views.values(), *seen.values())),
        next_step=f"Restart {service}, or stop prefill for longer than {_GIVES_UP}, so that decode asks {address} again.",
    )


_SHOWN = 8


# ---- decode was replaced, and prefill has what the process before sent -------------------------------------------------


def _decode_replaced(look: Look) -> Iterator[Suspect]:
    clusters = dict.fromkeys(view.identity.cluster for view in look.views)
    for cluster in clusters:
        decode = [v for v in look.views if (v.identity.cluster, v.identity.role) == (cluster, "decode")]
        sessions = {setting(view, "transfer_session"): view for view in decode if view.rooms is not None}
        if not decode or "" in sessions or any(view.rooms is None or view.up_s is None for view in decode):
            continue  # who does not tell may be the one
        began: dict[str, dict[str, float]] = {}
        for session, one in sessions.items():
            servers = began.setdefault(_host(session), {})
            servers[one.identity.service] = max(one.up_s or 0.0, servers.get(one.identity.service, 0.0))
        there = _requests(decode)
        for view in look.views:
            i = view.identity
            if (i.cluster, i.role) != (cluster, "prefill") or view.rooms is None or view.up_s is None:
                continue
            yield from _held_for_ended(view, decode, sessions, began, there)


def _requests(decode: Sequence[RankView]) -> dict[int, list[Request]]:
    """Return the requests of decode by room; of ranks that say the same, those of one."""
    those = {
        (view.network, view.identity.host, *view.rooms.rooms.key("room", "rid", "bootstrap")): (view, view.rooms.rooms)
        for view in decode
        if view.rooms is not None
    }
    found: dict[int, dict[tuple[str, ...], Request]] = {}
    for view, table in those.values():
        for room, rid, address in table.rows("room", "rid", "bootstrap"):
            key = view.network, view.identity.host, rid, address
            found.setdefault(room, {})[key] = view, rid, address
    return {room: list(requests.values()) for room, requests in found.items()}


def _host(session: str) -> str:
    """Return the host that a session names, "" where it names none."""
    return session.rpartition(":")[0]


def _held_for_ended(
    view: RankView,
    decode: Sequence[RankView],
    sessions: Collection[str],
    began: Mapping[str, Mapping[str, float]],
    there: Mapping[int, Sequence[Request]],
) -> Iterator[Suspect]:
    """A prefill rank holds requests for decode processes that are gone, and others run in their place that began later.

    began: host of a session → decode server there → seconds ago. there: requests that decode has, by room: another pair of
    servers may have a room of this number.
    Which server took their place, the host of a session tells, where it names one. A request that no session is known to
    have is told of only where it is older than all decode ranks.
    """
    assert view.rooms is not None
    everywhere = max(up_s for servers in began.values() for up_s in servers.values())
    gone = [
        peer
        for peer in view.rooms.peers or ()
        if peer.session and peer.session not in sessions and (not _host(peer.session) or _host(peer.session) in began)
    ]
    since = {
        room: min(began.get(_host(peer.session), {}).values(), default=everywhere)
        for peer in gone
        for room in peer.rooms
    }
    ages: dict[int, float] = {}
    for room, rid, own, age_s, queue in view.rooms.rooms.rows("room", "rid", "bootstrap", "age_s", "queue"):
        if not room or not queue.startswith("prefill") or age_s <= since.get(room, everywhere):
            continue
        same = there.get(room, ())
        if len(same) <= MOST_OF_ROOM and all(
            (not rid or rid != its) and is_another(at, view, one, own) for one, its, at in same
        ):
            ages[room] = max(age_s, ages.get(room, 0.0))
    if not gone or not ages:
        return
    after = max(since.get(room, everywhere) for room in ages)
    held = [room for peer in gone for room in peer.rooms if room in ages]
    those = {service for servers in began.values() for service, up_s in servers.items() if up_s <= after}
    decode = [one for one in decode if one.identity.service in those]
    service = names(dict.fromkeys(one.identity.service for one in decode))
    many = f"{len(ages)} request{'s'[: len(ages) != 1]}"
    it, its = ("it", "its") if len(ages) == 1 else ("them", "their")
    had = f"that had {it}" if set(held) == set(ages) else f"that alone can have had {it}"
    yield Suspect(
        "PD144",
        f"{view.identity.label} holds {many} from before {service} started {seconds(after)} ago: the decode process {had} has "
        f"ended, and {its} time-out alone ends {it} here.",
        f"{view.identity.service} > {service}",
        rooms=tuple(ages),
        ranks=(view.identity.label, *(one.identity.label for one in decode)),
        evidence=(
            f"{view.identity.label} knows {len(gone)} decode rank{'s'[: len(gone) != 1]} that no decode rank here is: "
            + ", ".join(dict.fromkeys(peer.session for peer in gone[:4])),
            *(
                [f"{len(held)} of these requests are to be written to {'that' if len(gone) == 1 else 'those'}"]
                if held
                else []
            ),
            f"the oldest has been in its queue for {seconds(max(ages.values()))}",
        ),
        age_s=min(ages.values()) - after,
        cluster=view.identity.cluster,
        passing=True,
        units=(view.identity.unit, *(one.identity.unit for one in decode)),
        next_step="Send these requests again. Their time-outs end them here (pdctl stuck says when).",
    )


# ---- by times alone: where ranks do not tell what they use -------------------------------------------------------------


def _started_after(look: Look, role: str, other: str, seen: set[tuple[str, int]]) -> Iterator[Suspect]:
    """Addresses were exchanged before any rank of the other side that is there began: by the events of recordings."""
    for cluster in dict.fromkeys(view.identity.cluster for view in look.views):
        peers = [v for v in look.views if (v.identity.cluster, v.identity.role) == (cluster, other)]
        if not peers or any(view.up_s is None for view in peers):
            continue
        up_s = max(view.up_s for view in peers if view.up_s is not None)
        for view in look.views:
            if (view.identity.cluster, view.identity.role) != (cluster, role) or view.rooms is None:
                continue
            sent = {
                event.room: view.age_s(event.mono_ns) or 0.0
                for event in view.events
                if event.kind == EventKind.STATE and event.a == KVPoll.WAITING_FOR_INPUT
            }
            early = [
                room for room, age in sent.items() if room and age > up_s + SLACK_S and (cluster, room) not in seen
            ]
            if not early:
                continue
            waiting = {room for room, state in view.rooms.rooms.rows("room", "state") if state in SENT}
            late = {room: sent[room] for room in early if room in waiting}
            if late:
                yield _before(view, peers, late, up_s)


SLACK_S = 1.0
"""Two times of one moment may differ by so much: they come from different ranks' looks."""


def _before(view: RankView, peers: Sequence[RankView], late: dict[int, float], up_s: float) -> Suspect:
    service = names(dict.fromkeys(one.identity.service for one in peers))
    i, one = view.identity, len(late) == 1
    what = "sent its addresses" if i.role == "decode" else "was told decode's addresses"
    return Suspect(
        "PD144",
        f"{i.label} {what} for {len(late)} request{'s' * (not one)} before {service} started, {seconds(up_s)} ago: "
        f"{'it goes' if one else 'they go'} by a process that has ended.",
        f"{view.identity.service} > {service}",
        rooms=tuple(late),
        ranks=(i.label, *(peer.identity.label for peer in peers)),
        evidence=tuple(f"room {room}: {seconds(age)} ago" for room, age in list(late.items())[:8]),
        age_s=min(late.values()) - up_s,
        cluster=i.cluster,
        passing=True,
        units=(i.unit, *(peer.identity.unit for peer in peers)),
    )


# ---- two servers and one registration ----------------------------------------------------------------------------------


def _shared(look: Look) -> Iterator[Suspect]:
    """A bootstrap server sends decode to one prefill rank, and another that runs has registered there for the same place."""
    for loser, winner, server in shared(look):
        place = loser.identity.label
        users = {id(one): _users(look, one) for one in (loser, winner)}
        before = users[id(loser)]
        used = [one for one in (loser, winner) if users[id(one)]] or [winner]
        left = [one for one in (loser, winner) if one not in used]
        rooms = [room for one in left or used for room in _bootstrapping(one)]
        lost, won = _name(loser, winner), _name(winner, loser)
        summary = f"{lost} and {won} share the bootstrap server {server.address}: the second registered last"
        if before:
            summary += f". {names(before)} asked before and send{'s' * (len(before) == 1)} to the first."
        else:
            summary += f", and decode is sent there for {place}."
        if left:
            wait = f": {len(rooms)} request{'s'[: len(rooms) != 1]} wait{'s'[: len(rooms) == 1]} there" if rooms else ""
            summary += (
                f" What the router gives to the {'first' if left[0] is loser else 'second'} gets no addresses{wait}."
            )
        yield Suspect(
            "PD137",
            summary,
            f"{server.address}: {loser.identity.cluster}",
            rooms=tuple(rooms),
            ranks=(place,),
            evidence=(
                f"{won}: {winner.identity.who} listens on port {listens_on(winner)}, which is registered",
                f"{lost}: {loser.identity.who} listens on port {listens_on(loser)}, which is registered no more",
                *(f"{label} sends to port {listens_on(one)}" for one in (winner, loser) for label in users[id(one)]),
            ),
            cluster=loser.identity.cluster,
            detail=f"{loser.identity.pid} {winner.identity.pid}",
            passing=True,
            units=(loser.identity.unit, winner.identity.unit),
        )


def _users(look: Look, prefill: RankView) -> list[str]:
    """Return the decode ranks that send to a prefill rank."""
    return [
        view.identity.label
        for view in look.views
        if view.identity.role == "decode" and view.rooms is not None
        if any(is_target(peer, prefill, view) for peer in view.rooms.peers or ())
    ]


def _bootstrapping(view: RankView) -> list[int]:
    rows = view.rooms.rooms.rows("room", "queue") if view.rooms is not None else ()
    return [room for room, queue in rows if room and queue == "prefill.bootstrap"]


def _name(view: RankView, other: RankView) -> str:
    """Return a name of a rank's server that the other one does not have."""
    if view.identity.service != other.identity.service:
        return view.identity.service
    return f"{view.identity.service} (pid {view.identity.pid})"
