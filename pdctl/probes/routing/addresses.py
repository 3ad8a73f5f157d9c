"""Where ranks and bootstrap servers are to be reached, as they and the other side have it. Pure."""

from __future__ import annotations

import ipaddress

from pdctl.probes.routing.model import Look, RankView, ServerView, place_of
from pdctl.protocol.numbers import PORT, whole
from pdctl.protocol.requests import Peer


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


def own_address(view: RankView) -> str:
    """Return where a prefill rank's own bootstrap server should be by its settings, "" where they do not tell."""
    if view.settings is None or view.identity.role != "prefill":
        return ""
    values = view.settings.values
    host, port = values.get("host", ""), values.get("disaggregation_bootstrap_port", "")
    if not whole(port, PORT):
        return ""
    host = "127.0.0.1" if host in ("", "0.0.0.0", "localhost", "::") else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses(view: RankView) -> set[str]:
    """Return the addresses of a prefill rank's own bootstrap server, as its requests and its settings have them."""
    found = set(view.rooms.rooms.distinct("bootstrap")) if view.rooms is not None else set()
    own = own_address(view)
    return {*found, own} if own else found


def _loopback(address: str) -> bool:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    """Return the bootstrap servers that may be this prefill rank's: at its port, in its network."""
    if look.instead:
        return list(look.servers.values())
    port = setting(view, "disaggregation_bootstrap_port")
    return [
        server
        for (network, address), server in look.servers.items()
        if network == view.network and address.rpartition(":")[2] == port
    ]
