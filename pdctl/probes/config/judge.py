"""Puts the settings of servers side by side and says what can't work. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdctl.probes.config.model import ConfigDocument, RankSettings, ServerConfig, Setting
from pdctl.report.findings import Finding, finding
from pdctl.targets.nodeset import listed

_RAISES = "decode compares it with what prefill's bootstrap server says, and raises in its scheduler when it first asks"
_MUST_AGREE = {
    "page_size": _RAISES,
    "kv_cache_dtype": _RAISES,
    "num_hidden_layers": "nobody compares it: layers are paired by position, and those of one side have no partner",
    "disaggregation_transfer_backend": "the two backends' messages differ: no request gets past its handshake",
    "aux_item_lens": "nobody compares it up to 0.5.22: prefill finds decode's rows by the lengths of its own, so they land"
    " in the wrong places",
    "kv_item_lens": "nobody compares it: the bytes of a token differ, so KV is written to the wrong places",
}
"""Settings in which sides that deal with each other must agree, and what the engine does when they do not."""
_OF_A_SERVER = (
    "attention_backend", "attn_cp_size", "aux_item_lens", "chunked_prefill_size", "context_length",
    "custom_mem_pool_type", "decode_attention_backend", "disaggregation_bootstrap_port",
    "disaggregation_decode_enable_radix_cache", "disaggregation_mode", "disaggregation_transfer_backend", "dp_size", "dtype",
    "enable_dp_attention", "enable_hierarchical_cache", "enable_hisparse", "ep_size", "kv_cache_dtype", "kv_item_lens",
    "kv_page_size", "load_balance_method", "max_running_requests", "num_hidden_layers", "num_reserved_decode_tokens",
    "page_size", "pp_size", "prefill_attention_backend", "quantization", "served_model_name", "speculative_algorithm",
    "speculative_num_draft_tokens", "tp_size",
)  # fmt: skip
"""Settings that all ranks of a server have alike; others (ports, devices) are each rank's own."""
JOIN = " | "
"""Between the values of ranks that differ, in a document."""


@dataclass
class _Server:
    name: str
    role: str
    cluster: str
    ranks: list[RankSettings] = field(default_factory=list)
    peers: list[_Server] = field(default_factory=list)

    @property
    def answering(self) -> list[RankSettings]:
        return [rank for rank in self.ranks if rank.body is not None]

    def all_of(self, kind: str, name: str) -> list[str]:
        """Return the different values of a setting, in the order of the ranks."""
        bodies = [rank.body for rank in self.ranks if rank.body is not None]
        return list(dict.fromkeys((b.values if kind == "argument" else b.env).get(name, "") for b in bodies))

    def one(self, name: str) -> str:
        """Return the value of an argument where all ranks agree, else ""."""
        values = self.all_of("argument", name)
        return values[0] if len(values) == 1 else ""

    @property
    def agreed(self) -> dict[str, str]:
        """The arguments that all ranks agree on."""
        return {name: self.one(name) for name in _names([self], "argument")}


def judge(views: Sequence[RankSettings]) -> ConfigDocument:
    """Return the document of these ranks' settings."""
    servers = _servers(views)
    _pair(servers)
    problems = [f"{view.identity.label}: {view.silence}" for view in views if view.silence]
    findings = [f for server in servers for f in _within(server)]
    settings = []
    bad: dict[str, str] = {}
    for server in servers:
        for peer in server.peers:
            if server.role == "decode":
                found = list(_between(peer, server))
                findings += found
                bad.update(_mismatches(peer, server))
    for kind, names in (("argument", _names(servers, "argument")), ("environment", _names(servers, "environment"))):
        settings += [_setting(kind, name, servers, bad) for name in names]
    return ConfigDocument(
        servers=tuple(_report(server) for server in servers),
        settings=tuple(settings),
        findings=tuple(findings),
        partial=bool(problems),
        problems=tuple(problems),
    )


_MAKE_LENGTHS = frozenset({"page_size", "kv_cache_dtype", "num_hidden_layers"})
"""Settings that the lengths of KV items follow from."""


def _servers(views: Sequence[RankSettings]) -> list[_Server]:
    servers: dict[tuple[str, str], _Server] = {}
    for view in views:
        i = view.identity
        name = i.service or f"{i.role}@{i.host}"
        servers.setdefault((i.cluster, i.instance), _Server(name, i.role, i.cluster)).ranks.append(view)
    return list(servers.values())


def _pair(servers: Sequence[_Server]) -> None:
    """Tell each server which ones it deals with: those decode was told of, or the only two of a cluster.

    Where that is not clear, nothing is paired: two clusters on one host have nothing to do with each other.
    """
    for decode in (s for s in servers if s.role == "decode"):
        prefills = [s for s in servers if s.role == "prefill" and s.cluster == decode.cluster]
        known = {address for rank in decode.ranks for address in rank.prefills}
        if known:
            found = [s for s in prefills if _port(s) and any(a.rpartition(":")[2] == _port(s) for a in known)]
            peers = found if len({_port(s) for s in found}) == len(found) else []
        else:
            alone = len(prefills) == 1 == sum(s.role == "decode" and s.cluster == decode.cluster for s in servers)
            peers = prefills if alone else []
        for peer in peers:
            decode.peers.append(peer)
            peer.peers.append(decode)


def _port(server: _Server) -> str:
    return server.one("disaggregation_bootstrap_port")


# ---- within a server -------------------------------------------------------------------------------------------------


def _within(server: _Server) -> list[Finding]:
    found = []
    for name in _OF_A_SERVER:
        if name == "kv_item_lens" and server.ranks[0].identity.pp_size > 1:
            continue  # stages may hold different numbers of layers
        found += _differing(server, "argument", name, server.answering)
    hosts: dict[str, list[RankSettings]] = defaultdict(list)
    for rank in server.answering:
        hosts[rank.identity.host].append(rank)
    for ranks in hosts.values():  # on another node it may name another network device
        for name in sorted({name for rank in ranks if rank.body for name in rank.body.env}):
            found += _differing(server, "environment", name, ranks)
    return found


def _differing(server: _Server, kind: str, name: str, ranks: Sequence[RankSettings]) -> list[Finding]:
    by_value: dict[str, list[str]] = defaultdict(list)
    for rank in ranks:
        if rank.body is not None:
            values = rank.body.values if kind == "argument" else rank.body.env
            by_value[values.get(name, "")].append(rank.identity.label)
    if len(by_value) < 2:
        return []
    fewest = min(by_value.values(), key=len)
    said = tuple(f"{value or 'not set'}: {listed(labels)}" for value, labels in by_value.items())
    summary = f"{name} of {server.name} is not the same on all its ranks: {'; '.join(said)}"
    return [finding("PD134", summary, ranks=tuple(fewest), evidence=said)]


# ---- between the sides -----------------------------------------------------------------------------------------------


def mismatches(prefill: Mapping[str, str], decode: Mapping[str, str], *, alike: bool) -> Iterable[tuple[str, str]]:
    """Yield (setting, what the engine does) of each that must agree and does not; one that a side does not tell is left out.

    alike: both sides split the model in the same way, so that a rank holds the same share of it.
    """
    for name, why in _MUST_AGREE.items():
        one, other = prefill.get(name, ""), decode.get(name, "")
        if not one or not other or one == other:
            continue
        if name == "page_size" and "True" in (prefill.get("enable_hisparse"), decode.get("enable_hisparse")):
            continue  # there decode's host pool has pages of one token, and the engine knows
        if name == "kv_item_lens" and not alike:
            continue  # each rank holds another share of the heads, or of the layers
        yield name, why


def _mismatches(prefill: _Server, decode: _Server) -> Iterable[tuple[str, str]]:
    here, there = prefill.ranks[0].identity, decode.ranks[0].identity
    sizes = [(one.tp_size, one.pp_size, one.cp_size) for one in (here, there)]
    return mismatches(prefill.agreed, decode.agreed, alike=sizes[0] == sizes[1])


def _between(prefill: _Server, decode: _Server) -> Iterable[Finding]:
    found = dict(_mismatches(prefill, decode))
    for name, why in found.items():
        if name == "kv_item_lens" and not _MAKE_LENGTHS.isdisjoint(found):
            continue  # that follows, and the settings tell of it
        yield finding(
            "PD135",
            f"{name} is {prefill.one(name)} on {prefill.name} and {decode.one(name)} on {decode.name}: {why}",
            ranks=(prefill.ranks[0].identity.label, decode.ranks[0].identity.label),
            evidence=(f"{prefill.name}: {prefill.one(name)}", f"{decode.name}: {decode.one(name)}"),
        )
    one, other = _versions(prefill), _versions(decode)
    if one and other and one != other:
        yield finding(
            "PD136",
            f"{prefill.name} is {one}, {decode.name} is {other}",
            evidence=(f"{prefill.name}: {one}", f"{decode.name}: {other}"),
        )


def _versions(server: _Server) -> str:
    found = dict.fromkeys(f"{r.identity.engine} {r.identity.engine_version}" for r in server.ranks if r.identity.engine)
    return ", ".join(found)


# ---- side by side ----------------------------------------------------------------------------------------------------


def _names(servers: Sequence[_Server], kind: str) -> list[str]:
    found = {
        name
        for server in servers
        for rank in server.answering
        if rank.body is not None
        for name in (rank.body.values if kind == "argument" else rank.body.env)
    }
    return sorted(found)


def _setting(kind: str, name: str, servers: Sequence[_Server], bad: dict[str, str]) -> Setting:
    values = {server.name: JOIN.join(value or "not set" for value in server.all_of(kind, name)) for server in servers}
    mixed = any(len(server.all_of(kind, name)) > 1 for server in servers)
    if kind == "argument" and name in bad:
        verdict, text = "mismatch", bad[name]
    elif mixed:
        verdict, text = "per rank" if kind == "argument" and name not in _OF_A_SERVER else "ranks differ", ""
    else:
        verdict, text = "same" if len(set(values.values())) < 2 else "differs", ""
    return Setting(name=name, kind=kind, verdict=verdict, servers=values, text=text)


def _report(server: _Server) -> ServerConfig:
    i = server.ranks[0].identity
    return ServerConfig(
        server=server.name,
        role=server.role,
        cluster=server.cluster,
        engine=i.engine,
        version=_versions(server),
        ranks=len(server.ranks),
        silent=tuple(rank.identity.label for rank in server.ranks if rank.silence),
        values={n: JOIN.join(server.all_of("argument", n)) for n in _names([server], "argument")},
        env={n: JOIN.join(server.all_of("environment", n)) for n in _names([server], "environment")},
        peers=tuple(peer.name for peer in server.peers),
    )
