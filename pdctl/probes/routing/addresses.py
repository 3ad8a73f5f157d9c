"""Where ranks and bootstrap servers are to be reached, as they and the other side have it. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache

from pdctl.probes.routing.model import Look, RankView, ServerView, place_of, plain_of
from pdctl.protocol.numbers import PORT, whole
from pdctl.protocol.requests import Peer

LOOPBACK, WILDCARD = "a loopback address", "the wildcard address"
_ANY = ("0.0.0.0", "::")


def setting(view: RankView, name: str) -> str:
    """Return a setting of the rank, "" unknown."""
    return view.settings.values.get(name, "") if view.settings is not None else ""


def listens_on(view: RankView) -> int:
    """Return the port on which a rank takes messages of the other side, 0 unknown."""
    return whole(setting(view, "rank_port"), PORT) or 0


def serves(prefill: RankView, decode: RankView, address: str) -> bool:
    """Return whether ``address``, as this decode rank uses it, is surely the bootstrap server of this prefill rank's server."""
    if not address or address not in addresses(prefill):
        return False
    if not _loopback(address):
        return True
    return prefill.identity.host == decode.identity.host and prefill.network == decode.network


def is_another(address: str, prefill: RankView, decode: RankView, own: str) -> bool:
    """Return whether ``address``, as this decode rank uses it, is surely of another bootstrap server than this prefill rank's.

    own: what a request of the prefill rank has as its address. Of IPv6, only decode's has brackets.
    """
    if not address or not is_named(own):
        return False
    plain = plain_of(address)
    if plain not in (plain_of(own), plain_of(own_address(prefill))) and plain not in prefill.named:
        return True
    return _itself(address, prefill, decode)


def is_one(address: str, view: RankView, other: str, of: RankView) -> bool:
    """Return whether the addresses of two requests, each as its rank uses it, name one bootstrap server."""
    return is_named(address) and plain_of(address) == plain_of(other) and not _itself(address, view, of)


def is_none_of(known: Collection[tuple[str, str]], those: Collection[tuple[str, str]]) -> bool:
    """Return whether one of those requests that have a room is surely none of the known ones that have it on the other side.

    Each is its id and its bootstrap server as it names it: other ids, and bootstrap servers of other names.
    """
    rids = {rid for rid, _ in known if rid}
    there = {plain_of(address) for _, address in known}
    return all(is_named(address) for _, address in known) and any(
        is_named(address) and rid not in rids and plain_of(address) not in there for rid, address in those
    )


def is_named(address: str) -> bool:
    """Return whether an address tells of a server: a host that a request does not name is the engine's ``None``."""
    return address.rpartition(":")[0] not in ("", "None")


def _itself(address: str, one: RankView, other: RankView) -> bool:
    """Return whether an address surely means another server to each of two ranks: loopback, and they are not together."""
    if not _loopback(address):
        return False
    if one.network and other.network:
        return one.network != other.network
    return "" not in (hosts := {one.identity.host, other.identity.host}) and len(hosts) > 1


def own_address(view: RankView) -> str:
    """Return where a prefill rank's own bootstrap server should be by its settings, "" where they do not tell.

    One that listens on all addresses is on loopback in a network that is seen from here. Elsewhere it has the address by which
    the other side reaches the rank, that of its server's first one (:func:`beside_server`).
    """
    if view.settings is None or view.identity.role != "prefill":
        return ""
    values = view.settings.values
    host, port = values.get("host", ""), values.get("disaggregation_bootstrap_port", "")
    if not whole(port, PORT):
        return ""
    if host in _ANY and not view.network:
        host = values.get("rank_ip", "").strip("[]") or host
    elif host in ("", "localhost", *_ANY):
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses(view: RankView) -> set[str]:
    """Return the addresses of a prefill rank's own bootstrap server, as its requests and its settings have them."""
    found = set(view.rooms.rooms.distinct("bootstrap")) if view.rooms is not None else set()
    own = own_address(view)
    return {*found, own} if own else found


def beside_server(view: RankView) -> bool:
    """Return whether a prefill rank's server has its bootstrap server in this rank's network: it is beside the first one."""
    return bool(view.network) or view.identity.world_rank <= 0


@lru_cache(4096)
def means_itself(host: str) -> str:
    """Return LOOPBACK or WILDCARD for a host that means another one on each host, "" for any other."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return LOOPBACK if host == "localhost" else ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    return WILDCARD if found.is_unspecified else LOOPBACK if found.is_loopback else ""


def _loopback(address: str) -> bool:
    return bool(means_itself(_host(address)))


def _host(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def is_target(peer: Peer, prefill: RankView, decode: RankView) -> bool:
    """Return whether a rank that answers may be the one that a decode rank sends to."""
    if listens_on(prefill) != peer.port:
        return False
    own = setting(prefill, "rank_ip")
    if own and peer.host and own != peer.host:
        return False
    return not _loopback(f"{peer.host}:0") or prefill.identity.host == decode.identity.host


def shared(look: Look) -> list[tuple[RankView, RankView, ServerView]]:
    """Return (rank that is not registered, rank that is, bootstrap server) where two have one place there.

    With a shared CP and TP group, places are registered under others: those are left out.
    """
    prefill = [
        view
        for view in look.views
        if view.identity.role == "prefill"
        and view.rooms is not None
        and listens_on(view)
        and view.identity.cp_size <= 1
    ]
    found = []
    for view in prefill:
        for server in near(view, look):
            given = server.routes.get(place_of(view), 0)
            if given <= 0 or given == listens_on(view):
                continue
            for other in prefill:
                one_place = place_of(other) == place_of(view) and other.identity.cluster == view.identity.cluster
                if one_place and listens_on(other) == given and other.network == view.network:
                    found.append((view, other, server))
    return found


def near(view: RankView, look: Look) -> list[ServerView]:
    """Return the bootstrap servers that may be this prefill rank's: at its port, in its network.

    Where its network is not seen from here, servers of several hosts have one port: then at an address of its own server.
    """
    if look.instead:
        return list(look.servers.values())
    port = setting(view, "disaggregation_bootstrap_port")
    there = [
        server
        for (network, address), server in look.servers.items()
        if network == view.network and address.rpartition(":")[2] == port
    ]
    if view.network or not there:
        return there
    mates = look.mates[view.identity.role, view.identity.instance]
    own = {address for one in mates for address in addresses(one) if not _loopback(address)}
    names = {_label(one.identity.host) for one in mates}
    return [server for server in there if not own or server.address in own or _label(_host(server.address)) in names]


def _label(host: str) -> str:
    return host.partition(".")[0].lower()
