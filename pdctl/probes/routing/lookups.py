"""Bootstrap servers that decode asks in vain: live counts, and what recordings keep of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pdctl.probes.queues.formatting import names
from pdctl.probes.routing.addresses import addresses, beside_server, serves
from pdctl.probes.routing.model import FAKE, RECENT_S, Fault, Look, Misses, RankView, ServerView
from pdctl.probes.routing.suspects import Suspect
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.notes import ABORTED, EVERY_REQUEST, LOST
from pdctl.protocol.requests import Lookup, RoomTable

_SURELY = 2
"""Attempts without an answer, from which on a server that accepts connections is more than slow."""
_AFTER_NS = 2_000_000_000
_ASKED_S = 15.0
"""How long ago a server was asked last by a rank that still needs it: as long as 15 attempts of the engine take."""


_WITHOUT = "{service} runs without its bootstrap server: restart it as a whole."


@dataclass
class _Address:
    """One bootstrap server, as the decode ranks of one cluster that need it know it."""

    views: list[RankView] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    misses: list[Misses] = field(default_factory=list)
    waiting: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Whether a request waits for it, was failed for it, or may: counts stay where a client aborts who asked."""
        asked = [found.last_s for found in self.lookups if found.attempts]
        asked += [-1.0 if found.last_s is None else found.last_s for found in self.misses]
        return bool(self.waiting or self.failed) or any(last_s <= _ASKED_S for last_s in asked)

    @property
    def near_the_end(self) -> bool:
        """Whether decode has failed requests, or will soon: no server that starts takes it so long to know its ranks."""
        return bool(self.failed) or any(0 < found.most < 2 * found.attempts for found in self.lookups)


def suspects_of_lookups(look: Look) -> Iterator[Suspect]:
    """Yield the bootstrap servers that decode needs and that do not answer; none where others were asked instead."""
    if look.instead:
        return
    needed = {key: one for key, one in _addresses(look).items() if one.needed}
    for (cluster, network, address), one in needed.items():
        server = look.servers.get((network, address))
        prefill = [v for v in look.views if (v.identity.cluster, v.identity.role) == (cluster, "prefill")]
        forgot = server is not None and _forgot(address, one, server, prefill)
        attempts = max((found.attempts for found in one.lookups), default=0)
        times = max((found.times for found in one.misses), default=0)
        if server is not None and (server.usable or not (server.silence or forgot or one.near_the_end)):
            continue
        fault = server.fault if server is not None else Fault.OTHER
        if not (fault in (Fault.REFUSES, Fault.UNREACHABLE) and network) and max(attempts, times) < _SURELY:
            continue  # it may be slow, or is only out of reach from here
        yield _suspect(cluster, address, one, server, fault, prefill, forgot=forgot)
    yield from _missing(look, {(network, address) for _, network, address in needed})


def _forgot(address: str, one: _Address, server: ServerView, prefill: Sequence[RankView]) -> bool:
    """Return whether a server answers that ranks have not registered, and all that it serves run: they register once."""
    behind = [view for view in prefill if serves(view, one.views[0], address)]
    turn = [view.rooms is not None and view.rooms.ticks > 1 for view in behind]
    return bool(server.info_off) and not server.silence and bool(turn) and all(turn)


def _missing(look: Look, needed: Collection[tuple[str, str]]) -> Iterator[Suspect]:
    """Yield the bootstrap servers of prefill servers that run, and that nobody has needed since they ended.

    needed: (network, address) of those that somebody has.
    """
    for view in look.views:
        i = view.identity
        if i.role != "prefill" or i.world_rank != 0 or i.dp > 0 or view.rooms is None or not view.network:
            continue  # the bootstrap server is on the host of its server's first rank
        for (network, address), server in look.servers.items():
            if network != view.network or server.fault is not Fault.REFUSES or (network, address) in needed:
                continue
            if serves(view, view, address):
                yield Suspect(
                    "PD145",
                    f"The bootstrap server {address} of {i.service} refuses connections, and its ranks run; since when is not "
                    "known. No request waits for it now; the next one of a decode rank that does not know this server fails.",
                    address,
                    ranks=(i.label,),
                    evidence=(f"asked from the network of {i.label}: {server.silence}",),
                    cluster=i.cluster,
                    units=(i.unit,),
                    next_step=_WITHOUT.format(service=i.service),
                )


def _addresses(look: Look) -> dict[tuple[str, str, str], _Address]:
    found: dict[tuple[str, str, str], _Address] = {}
    asking: dict[tuple[object, ...], list[tuple[int, int, str]]] = {}  # of ranks that say the same, once
    for view in look.views:
        if view.identity.role != "decode" or view.rooms is None:
            continue
        here: dict[str, _Address] = {}

        def at(address: str, view: RankView = view, here: dict[str, _Address] = here) -> _Address:
            one = found.setdefault((view.identity.cluster, view.network, address), _Address())
            if address not in here:
                here[address] = one
                one.views.append(view)
            return one

        table = view.rooms.rooms
        said = table.key("queue", "room", "bootstrap", "state")
        if said not in asking:
            asking[said] = list(_asking(table))
        ages = table.column("age_s") if asking[said] else []
        for row, room, address in asking[said]:
            one = at(address)
            one.waiting[room] = max(ages[row], one.waiting.get(room, -1.0))
        for address, lookup in view.rooms.lookups.items():
            at(address).lookups.append(lookup)
        for address, misses in view.missed.items():
            one = at(address)
            one.misses.append(misses)
            one.failed.update(_failed(view, misses))
        for event in view.failures:
            lost = event.kind == EventKind.FAILURE and event.text.startswith(LOST)
            ago = view.age_s(event.mono_ns) if lost else None
            for address, one in here.items() if ago is not None and ago <= RECENT_S else ():
                if f"bootstrap_addr: {address}"[:_SHOWN] in event.text:
                    one.failed[event.room] = event.text
    return found


def _asking(table: RoomTable) -> Iterator[tuple[int, int, str]]:
    """Yield the row, the room and the bootstrap server of requests that wait for what that server says."""
    for row, (queue, room, address, state) in enumerate(table.rows("queue", "room", "bootstrap", "state")):
        asks = queue == "decode.pending" or (queue == "decode.prealloc" and state == KVPoll.BOOTSTRAPPING)
        if asks and room and address and not address.startswith(FAKE):
            yield row, room, address


_SHOWN = 30
"""Of a reason a recording keeps the beginning only, which may end within the address."""


def _failed(view: RankView, misses: Misses) -> dict[int, str]:
    """Return the requests that the engine failed as it gave up, after its last attempt, and which no client aborted."""
    rids = {event.room: event.text for event in view.failures if event.kind == EventKind.ENQUEUE and event.text}
    aborted = tuple(event.text for event in view.failures if event.kind == EventKind.ABORT and event.text)
    if EVERY_REQUEST in aborted:
        return {}
    return {
        event.room: event.text
        for event in view.failures
        if event.kind == EventKind.FAILURE
        and event.text.startswith(ABORTED)
        and 0 <= event.mono_ns - misses.last_ns <= _AFTER_NS
        and not rids.get(event.room, "?").startswith(aborted)  # the engine aborts what begins so
    }


def _suspect(
    cluster: str,
    address: str,
    one: _Address,
    server: ServerView | None,
    fault: Fault,
    prefill: Sequence[RankView],
    *,
    forgot: bool,
) -> Suspect:
    places = names(f"tp{view.identity.tp}" for view in one.views)
    service = one.views[0].identity.service
    plural = len(one.views) != 1
    since_s = max((m.since_s for m in one.misses if m.since_s is not None), default=None)
    at_least = max((_lasted_s(found) for found in one.lookups if found.attempts), default=None)
    does = fault.value
    if forgot:
        does = "does not know prefill ranks that run: it has started anew, and they register only once"
    elif fault in (Fault.NONE, Fault.OTHER):
        said_so = "" if server is None else server.silence or server.info_off
        does = f"gives decode no answer that it can use ({said_so})" if said_so else "does not answer decode"
    if since_s is not None:
        when = f"; decode has had no answer for {seconds(since_s)}"
    elif at_least is not None:
        when = f"; decode has had no answer for {seconds(at_least)} at least"
    else:
        when = "; since when is not known"
    said = [f"The bootstrap server {address} {does}{when}."]
    tried = max(one.lookups, key=lambda found: found.attempts, default=Lookup())
    rooms = tuple(dict.fromkeys([*one.waiting, *one.failed]))
    if one.waiting:
        many = len(one.waiting)
        of = f"attempt {tried.attempts} of {tried.most}" if tried.attempts and tried.most > 0 else ""
        retry = (
            f"; {places} {'are' if plural else 'is'} at {of}, then fail{'s'[: not plural]} {'it' if many == 1 else 'them'}"
            if of
            else ""
        )
        wait = f"{many} request{'s'[: many != 1]} of {service} wait{'s'[: many == 1]} for it"
        said.append(f"{wait}{retry}.")
    elif tried.attempts and tried.most > 0:
        said.append(f"{service} {places}: attempt {tried.attempts} of {tried.most}.")
    if one.failed:
        many = len(one.failed)
        ago = min((m.last_s for m in one.misses if m.last_s is not None), default=None)
        when = f" {seconds(ago)} ago" if ago is not None else ""
        reasons = ", ".join(dict.fromkeys(_reason(text) for text in one.failed.values()))
        said.append(
            f"Decode gave up{when} and failed {many} request{'s'[: many != 1]} ({reasons}): no client aborted "
            f"{'them' if many != 1 else 'it'}."
        )
    behind, next_step = _behind(address, one, prefill)
    if forgot and behind:
        next_step = f"Restart {behind[0].identity.service} as a whole, so that its ranks register again."
    heard = (
        f"asked from here: {server.silence or server.info_off}"
        if server is not None
        else "it can't be asked: this is a recording"
    )
    evidence = [heard]
    for view in one.views:
        lookup = view.rooms.lookups.get(address) if view.rooms is not None else None
        if lookup is not None and lookup.attempts:
            evidence.append(f"{view.identity.label}: {lookup.attempts} attempts in a row without an answer")
        if lookup is not None and lookup.missed:
            evidence.append(f"{view.identity.label}: {lookup.missed} heartbeats in a row without an answer")
        kept = view.missed.get(address)
        if kept is not None:
            evidence.append(f"{view.identity.label}: {kept.times} attempts in a row without an answer, as recorded")
    return Suspect(
        "PD145",
        " ".join(said),
        address,
        rooms=rooms,
        ranks=tuple(view.identity.label for view in one.views),
        evidence=tuple(evidence),
        age_s=max((age for age in (since_s, at_least) if age is not None), default=None),
        cluster=cluster,
        passing=True,
        units=(*(view.identity.unit for view in one.views), *(view.identity.unit for view in behind)),
        next_step=next_step,
    )


def _behind(address: str, one: _Address, prefill: Sequence[RankView]) -> tuple[list[RankView], str]:
    """Return the prefill ranks whose bootstrap server this is, and what to do then, "" where that is not known."""
    behind = [view for view in prefill if serves(view, one.views[0], address)]
    if behind:
        service = behind[0].identity.service
        return behind, _WITHOUT.format(service=service)
    told = [view for view in prefill if view.settings is not None]
    if len({view.identity.service for view in prefill}) == 1 and len(told) < len(prefill):
        return list(prefill), ""  # it does not answer either, and there is no other
    known = [sorted(filter(None, addresses(view))) for view in told if beside_server(view)]
    if known and all(known):
        there = names(dict.fromkeys(found[0] for found in known))
        return [], (
            f"Look at the bootstrap host and port that the router sends: no prefill server here has {address}; "
            f"there is {there}."
        )
    return [], ""


def _reason(text: str) -> str:
    return next((known for known in (ABORTED, *LOST) if text.startswith(known)), text)


def _lasted_s(lookup: Lookup) -> float:
    """Return for how long, at least, a rank has asked in vain."""
    between = max(lookup.every_s, 0.0) * (lookup.attempts - 1)
    return between + max(lookup.last_s, 0.0)
