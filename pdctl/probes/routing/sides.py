"""How each server routes, and where two of them, or a server and its bootstrap server, contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pdctl.probes.queues.formatting import names
from pdctl.probes.routing.addresses import is_another, is_named, listens_on, near, own_address, shared
from pdctl.probes.routing.facts import (
    CONFLICTING,
    EVERY,
    FOLLOW,
    NONE,
    balance,
    believed,
    dp_size,
    forced,
    is_set,
    number,
    registers,
)
from pdctl.probes.routing.model import FAKE, Look, RankView, Side, place_of, plain_of
from pdctl.probes.routing.suspects import Suspect
from pdctl.protocol.requests import FORCE_QUERY, NOTES_CONFLICTS, REGISTERS_EVERY_ROOM

Key = tuple[str, str, str, str]


def servers_of(look: Look) -> dict[Key, list[RankView]]:
    """Return the ranks of every start of every server."""
    found: dict[Key, list[RankView]] = {}
    for view in look.views:
        i = view.identity
        found.setdefault((i.cluster, i.role, i.service, i.instance), []).append(view)
    return found


def sides_of(look: Look) -> tuple[Side, ...]:
    """Return how each server routes, by its own ranks."""
    return tuple(_side(key, views) for key, views in servers_of(look).items())


def _side(key: Key, views: Sequence[RankView]) -> Side:
    cluster, role, service, _ = key
    answering = [view for view in views if view.settings is not None]
    heard = sum(view.rooms is not None for view in views)  # also in its recording, where none is asked
    common = Side(role=role, service=service, cluster=cluster, ranks=len(views), answered=heard)
    if not answering:
        return common
    one = answering[0]
    told: dict[str, dict[str, str]] = {}
    for view in answering:
        for address, facts in (view.rooms.prefills if view.rooms is not None else {}).items():
            told.setdefault(address, dict(facts))
    return msgspec.structs.replace(
        common,
        dp_size=dp_size(one) if role == "prefill" else -1,
        balance=balance(one) if role == "prefill" else "",
        force_query=any(forced(view) for view in answering),
        registers=registers(one) if role == "prefill" else _asks_for(one),
        believes=told,
        addresses=tuple(sorted(addresses(one) | set(told))),
    )


def _asks_for(view: RankView) -> str:
    kinds = set()
    for facts in (view.rooms.prefills if view.rooms is not None else {}).values():
        many = number(facts.get("dp_size", ""), 1) > 1
        kinds.add(EVERY if many and (facts.get(FOLLOW) != "True" or forced(view)) else NONE)
    return kinds.pop() if len(kinds) == 1 else ""


def addresses(view: RankView) -> set[str]:
    """Return the addresses of bootstrap servers that this rank's rooms, or what it was told, name."""
    if view.rooms is None:
        return set()
    return set(filter(None, view.rooms.rooms.distinct("bootstrap"))) | set(view.rooms.prefills)


def suspects_of_sides(look: Look) -> Iterator[Suspect]:
    """Yield what the servers' settings, and what they were told, contradict."""
    servers = servers_of(look)
    for key, views in servers.items():
        if key[1] == "prefill":
            for other, decode in servers.items():
                if other[1] == "decode" and other[0] == key[0] and _belong(views, decode, servers):
                    yield from _one_side(views, decode)
            yield from _ports(views, look)
        elif key[1] == "decode":
            yield from _stale(views, look)


def _belong(prefill: Sequence[RankView], decode: Sequence[RankView], servers: dict[Key, list[RankView]]) -> bool:
    """Return whether these decode ranks use this prefill server: by their requests, else as there is no other."""
    cluster = prefill[0].identity.cluster
    live = [key for key, views in servers.items() if key[:2] == (cluster, "prefill") and any(v.rooms for v in views)]
    own = [(view, held) for view in prefill for held in _named(view)[:1]]
    theirs: dict[str, dict[tuple[str, str], tuple[str, RankView]]] = {}
    for view in decode:
        for address in _named(view):
            theirs.setdefault(plain_of(address), {})[view.network, view.identity.host] = address, view
    if (own and theirs) or len(live) != 1:
        return any(
            not is_another(address, view, by, held)
            for view, held in own
            for plain in {*view.named, plain_of(own_address(view))}
            for address, by in theirs.get(plain, {}).values()
        )
    return any(view.rooms for view in prefill)


def _named(view: RankView) -> list[str]:
    """Return the addresses that tell to whom a rank's server belongs: no warm-up's, and none without a host."""
    return [one for one in addresses(view) if is_named(one) and not one.startswith(FAKE)]


def _one_side(prefill: Sequence[RankView], decode: Sequence[RankView]) -> Iterator[Suspect]:
    """FORCE_QUERY is in force on one side only, where it matters."""
    asked = [view for view in prefill if view.settings is not None]
    told = [view for view in decode if view.settings is not None]
    if not asked or not told or dp_size(asked[0]) <= 1 or balance(asked[0]) != FOLLOW:
        return
    on_prefill, on_decode = any(map(forced, asked)), any(map(forced, told))
    if on_prefill == on_decode:
        return
    if on_decode:
        effect = "decode asks for every room, and prefill registers none: every room stays pending"
    elif registers(asked[0]) == CONFLICTING:
        effect = (
            "prefill registers the rooms that conflict, and decode goes by the formula and never asks: those rooms hang"
        )
    else:
        effect = "prefill registers every room, and decode goes by the formula and never asks: rooms that conflict hang"
    there, missing = ("decode", "prefill") if on_decode else ("prefill", "decode")
    ignored = any(is_set(view) for view in (asked if on_decode else told))
    how = f"set on {missing} too, but its code does not heed it" if ignored else f"not set on {missing}"
    p, d = asked[0].identity, told[0].identity
    yield Suspect(
        "PD123",
        f"{FORCE_QUERY} is set on {there} and {how}: {effect}.",
        f"{p.service} > {d.service}",
        evidence=tuple(
            f"{view.identity.label}: {'set' if is_set(view) else 'not set'}"
            f"{'' if is_set(view) == forced(view) else ', not heeded by its code'}"
            for view in (asked[0], told[0])
        ),
        age_s=float("inf"),
        cluster=p.cluster,
        next_step=_unset(asked[0]),
    )


def _unset(prefill: RankView) -> str:
    """Return the next step where FORCE_QUERY on both sides is no way out for this prefill's code, "" for the catalogue's."""
    if prefill.seams.get(REGISTERS_EVERY_ROOM) is not False and prefill.seams.get(NOTES_CONFLICTS) is not False:
        return ""
    return (
        f"Unset {FORCE_QUERY} and restart the side that has it. On both sides it is no way out: with it this prefill does not"
        " register every room, and those that it does not register stay pending (PD124)."
    )


def _stale(decode: Sequence[RankView], look: Look) -> Iterator[Suspect]:
    """Decode ranks keep what they were told of a prefill server, and the bootstrap server tells something else now."""
    found: dict[tuple[str, str, str, str], list[RankView]] = {}
    for view in decode:
        for address in view.rooms.prefills if view.rooms is not None else ():
            server = look.server(view, address)
            if server is None or server.info is None:
                continue
            told = believed(view, address)
            for name in sorted(told.keys() & server.info.keys()):
                if told[name] != server.info[name]:
                    found.setdefault((address, name, told[name], server.info[name]), []).append(view)
    for (address, name, then, now), views in found.items():
        places = names(f"tp{view.identity.tp}" for view in views)
        yield Suspect(
            "PD128",
            f"{places} of {views[0].identity.service} take the prefill server behind {address} to have {name} {then}; "
            f"its bootstrap server says {now} now.",
            f"{address} > {views[0].identity.service}: {name}",
            ranks=tuple(view.identity.label for view in views),
            evidence=(f"told when first asked: {name} {then}", f"told now: {name} {now}"),
            cluster=views[0].identity.cluster,
            detail=f"{name} {then} {now}",
        )


def _ports(prefill: Sequence[RankView], look: Look) -> Iterator[Suspect]:
    """The bootstrap server sends decode to a port where no prefill rank listens, or to nobody."""
    doubled = {id(view) for view, _, _ in shared(look)}
    for view in prefill:
        i, port = view.identity, listens_on(view)
        if not port or i.cp_size > 1 or id(view) in doubled:
            continue  # with a shared CP and TP group, places are registered under others
        for server in near(view, look):
            given = server.routes.get(place_of(view))
            if given is None or given == port:
                continue
            sends = f"sends decode to port {given} for it" if given >= 0 else "does not know it"
            yield Suspect(
                "PD129",
                f"{i.label} listens on port {port}, and the bootstrap server {server.address} {sends}.",
                f"{i.service} {server.address}",
                ranks=(i.label,),
                evidence=(
                    f"/route for dp {i.dp} cp {i.cp} tp {i.tp} pp {i.pp}: {given if given >= 0 else 'not found'}",
                ),
                cluster=i.cluster,
                detail=i.label,
            )
