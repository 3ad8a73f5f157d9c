"""Servers and their pairs, as ``dump config`` has them, for the judge of ``preflight``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdctl.probes.config.judge import JOIN
from pdctl.probes.config.model import ConfigDocument, ServerConfig
from pdctl.probes.preflight.model import Pair, Side

UNPAIRED = (
    "which prefill and decode servers deal with each other is not known: give the servers of one deployment the same"
    " PDCTL_CLUSTER, or name one pair by --prefill-url and --decode-url"
)


def side_of(server: ServerConfig) -> Side:
    """Return one server."""
    known = {name: value for name, value in server.values.items() if JOIN not in value}
    versions = server.version.split(", ")
    version = versions[0].removeprefix(server.engine).strip() if len(versions) == 1 else ""
    silent = len(server.silent) >= server.ranks
    return Side(
        name=server.server,
        role=server.role,
        engine=server.engine,
        version=version,
        values=known,
        env=None if silent else {name: value for name, value in server.env.items() if JOIN not in value},
        silence="none of its ranks tells its settings" if silent else "",
        ranks=server.ranks,
        answered=server.ranks - len(server.silent),
        silent=server.silent,
        apart=frozenset(server.values.keys() - known.keys()),
    )


def pairs_of(document: ConfigDocument, sides: Sequence[Side]) -> tuple[tuple[Pair, ...], str]:
    """Return the pairs of these servers, and why some belong to none. sides: of the document's servers, in their order.

    A server deals with those that it is known to deal with, else with all of its cluster, if that has a name.
    """
    rows = list(zip(document.servers, sides, strict=True))
    prefills = [(server, side) for server, side in rows if server.role == "prefill"]
    pairs: list[Pair] = []
    alone = False
    for decode, side in rows:
        if decode.role != "decode":
            continue
        known = [
            mate for server, mate in prefills if server.server in decode.peers and server.cluster == decode.cluster
        ]
        named = [mate for server, mate in prefills if decode.cluster and server.cluster == decode.cluster]
        mates = known or named
        alone |= not mates
        pairs += [Pair(mate, side) for mate in mates]
    paired = {id(pair.prefill) for pair in pairs}
    alone |= any(id(side) not in paired for _, side in prefills)
    both = {server.role for server in document.servers} >= {"prefill", "decode"}
    return tuple(pairs), UNPAIRED if alone and both else ""


def merged(documents: Sequence[ConfigDocument]) -> ConfigDocument:
    """Return the servers of several documents in one; where there are one prefill and one decode server, they are a pair."""
    servers = [server for document in documents for server in document.servers]
    prefills, decodes = ([one for one in servers if one.role == role] for role in ("prefill", "decode"))
    if len(prefills) == len(decodes) == 1:
        mates: Mapping[str, str] = {"prefill": decodes[0].server, "decode": prefills[0].server}
        servers = [_with(one, mates.get(one.role, ""), decodes[0].cluster) for one in servers]
    return ConfigDocument(
        servers=tuple(servers),
        settings=(),
        findings=tuple(found for document in documents for found in document.findings),
        problems=tuple(problem for document in documents for problem in document.problems),
    )


def _with(server: ServerConfig, mate: str, cluster: str) -> ServerConfig:
    from msgspec.structs import replace

    return replace(server, peers=(mate,) if mate else server.peers, cluster=cluster)
