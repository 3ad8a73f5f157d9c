"""Find the ranks: from the run directory, from recordings of ended ranks, and from the server sizes that ranks report.

No rank is asked here. Only files and /proc are read. One connection is tried to a socket whose process can't be seen, for
instance from outside a container.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol import paths
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.files import is_folder
from pdctl.protocol.model import Identity
from pdctl.protocol.processes import NO_PROCESS, look
from pdctl.protocol.rank import FoundRank
from pdctl.recording.header import read_header
from pdctl.targets import registration
from pdctl.targets.sources import containers
from pdctl.targets.sources.agentless import (
    NONE,
    OFF,
    Agentless,
    OutsideSetting,
    attach_hint,
    parse_setting,
    select_processes,
)

if TYPE_CHECKING:
    from pdctl.introspect.find import Candidate
    from pdctl.trace.container import Trace

MAX_ABSENT = 4096
"""Rows for ranks that never registered; sizes come from files and may be damaged."""


@dataclass(frozen=True)
class Found:
    """The ranks found. earlier: dead ranks of earlier starts, left out. problems: files that could not be read.

    salts: salts of the traces with hashed names. elsewhere: endpoints and stores that were asked. took_s: time spent to find
    live ranks and to read agentless ones. agentless: processes of this host without an agent; they are looked for if
    ``outside`` is set, which adds the selected ones to ranks, or if there is no rank. outside_setting: the parsed
    PDCTL_OUTSIDE, for ranks with a silent agent (:mod:`pdctl.targets.fallback`). others: files of other users that were
    not used, in words.
    """

    ranks: tuple[FoundRank, ...] = ()
    earlier: int = 0
    problems: tuple[str, ...] = ()
    looked_in: tuple[Path, ...] = ()
    salts: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    took_s: float = 0.0
    agentless: Agentless = NONE
    outside: bool = False
    outside_setting: OutsideSetting = OFF
    others: tuple[str, ...] = ()

    @property
    def left_alone(self) -> str:
        """One line about files of other users, "" without any."""
        more = f" (and {len(self.others) - 1} more)" if len(self.others) > 1 else ""
        return f"left alone: {self.others[0]}{more}" if self.others else ""

    @property
    def left_out(self) -> str:
        """One line about ranks of earlier starts, "" without any."""
        many = "rank" if self.earlier == 1 else "ranks"
        return f"{self.earlier} dead {many} of earlier starts left out" if self.earlier else ""

    def require(self) -> Found:
        """Return self; raises PdctlError (UNREACHABLE) when there is no rank at all."""
        if self.ranks:
            return self
        looked = ", ".join([*self.elsewhere, *map(str, self.looked_in)])
        there, alone = len(self.agentless.living), self.agentless.left_alone
        if there:
            many = "1 rank" if there == 1 else f"{there} ranks"
            raise PdctlError(
                f"{many} found on this host, none with pdctl's agent",
                attach_hint(self.agentless.attach),
                details=self.problems,
            )
        if alone:
            many = "1 scheduler process runs" if alone == 1 else f"{alone} scheduler processes run"
            then = "PDCTL_OUTSIDE=all reads them with every command." if self.outside else attach_hint("PID")
            raise PdctlError(
                f"no ranks found in {looked}, but {many} on this host without an agent there",
                f"pdctl attach --all shows them; {then}",
                details=self.problems,
            )
        raise PdctlError(
            f"no ranks found in {looked}",
            "Does the engine run with pdctl's agent, and with PDCTL_LISTEN?"
            if self.elsewhere and not self.looked_in
            else "Does the engine run with pdctl's agent, as this user, with the same PDCTL_RUN_DIR and PDCTL_RECORD_DIR?",
            details=self.problems,
        )


def discover(
    env: Mapping[str, str],
    *,
    source: Path | None = None,
    every_start: bool = False,
    timeout_s: float = 10.0,
    rank_timeout_s: float = 2.0,
    outside: bool = False,
) -> Found:
    """Return the ranks of this host, or those at the endpoints and in the stores that the environment names.

    env: PDCTL_RUN_DIR, PDCTL_RECORD_DIR and XDG_RUNTIME_DIR are used as the agents use them. source: read only this trace, or
    the traces and recordings in this directory; every rank counts as dead then. every_start: also return dead ranks of earlier
    starts of a server. Ranks at endpoints (PDCTL_ENDPOINT) and in stores (PDCTL_STORE) get rank_timeout_s together, stores
    half of timeout_s. With endpoints or stores, directories are searched only if PDCTL_RUN_DIR or PDCTL_RECORD_DIR names
    them; a rank found there too is reached there. outside: also read agentless ranks of this host, within rank_timeout_s.
    PDCTL_OUTSIDE selects them (:func:`pdctl.targets.sources.agentless.select_processes`).

    Raises PdctlError: UNREACHABLE for a directory that is not private to this user or can't be read, and for an unusable trace;
    USAGE for a variable with an invalid value.
    """
    began = time.monotonic()
    until = began + timeout_s
    asked = OFF
    if source is None:
        asked = parse_setting(env)
        containers.parse_setting(env)
    problems: list[str] = []
    others: list[str] = []
    ranks: dict[str, FoundRank] = {}
    traces: list[Trace] = []
    elsewhere: tuple[str, ...] = ()
    if source is not None and not is_folder(source):
        from pdctl.trace.container import open_cached  # loads what reads ZIP files

        traces.append(open_cached(source, timeout_s=timeout_s))
        looked_in: tuple[Path, ...] = (source,)
        recordings = None
    elif source is None:
        away = _away(env, timeout_s, rank_timeout_s, problems)
        elsewhere = tuple(_elsewhere(env))
        folders, recordings = _folders(env, elsewhere)
        looked_in = (*folders, *([recordings] if recordings is not None else []))
        claims: list[registration.Claim] = []
        until = time.monotonic() + timeout_s / 2  # asking the ranks has to have some of it
        for folder in folders:
            if _usable(folder, env, others):
                for rank in registration.read(folder, problems, others, claims, until):
                    ranks.setdefault(_key(rank.identity), rank)
        for rank in (*away, *(containers.find(env, problems, others, claims, until) if not elsewhere else ())):
            ranks.setdefault(_key(rank.identity), rank)
        problems += _claimed(claims, ranks.values())
        if recordings is not None and not _usable(recordings, env, others):
            recordings = None
    else:
        recordings, looked_in = source, (source,)
        traces += _traces(source, problems, timeout_s, began)
    here = source is None
    for rank in _recordings(recordings, problems, here, until) if recordings is not None else ():
        ranks.setdefault(_key(rank.identity), rank)
    for trace in traces:
        for rank in _traced(trace, problems):
            ranks.setdefault(_key(rank.identity), rank)
    agentless = NONE
    if source is None and (outside or not ranks) and (not elsewhere or env.get("PDCTL_OUTSIDE")):
        agentless = select_processes(asked, list(ranks.values()), run_dir=bool(env.get("PDCTL_RUN_DIR")))
    if outside:
        for rank in _outside(agentless.selected, list(ranks.values()), rank_timeout_s):
            ranks.setdefault(_key(rank.identity), rank)
    chosen, earlier = (list(ranks.values()), 0) if every_start else _current(list(ranks.values()))
    where = "no agent of this rank registered here" if source is None else f"no recording of this rank in {source}"
    if elsewhere:
        where = "it is at none of the endpoints that answered, nor in the store"
        quiet = [rank.endpoint for rank in chosen if rank.identity.tp < 0 and rank.endpoint.startswith("tcp://")]
        if quiet:
            where += f"; {', '.join(quiet[:4])}{' …' if len(quiet) > 4 else ''} did not answer"
    reasons = {_place_of(e.identity): e.reason for t in traces for e in t.manifest.ranks if not e.member}
    absent = _absent(chosen, where)
    chosen += [replace(rank, endpoint_off=reasons.get(_place_of(rank.identity), where)) for rank in absent]
    chosen.sort(key=lambda rank: order(rank.identity))
    salts = tuple(dict.fromkeys(t.manifest.salt for t in traces if t.manifest.salt))
    took = time.monotonic() - began if source is None else 0.0
    if not chosen:
        problems += others  # whoever finds nothing wants to know of all that was there
    return Found(
        tuple(chosen),
        earlier,
        tuple(problems),
        looked_in,
        salts,
        elsewhere,
        took,
        agentless,
        outside,
        asked,
        tuple(others),
    )


def _claimed(claims: Iterable[registration.Claim], ranks: Iterable[FoundRank]) -> list[str]:
    """Return problems for other users' files that claim to belong to the servers found: those may be incomplete."""
    servers = {_server(rank.identity) for rank in ranks}
    return [
        f"{claim.path} claims to be of {claim.server[1]}; {claim.why}" for claim in claims if claim.server in servers
    ]


def _outside(chosen: Sequence[Candidate], ranks: Sequence[FoundRank], timeout_s: float) -> list[FoundRank]:
    """Return these processes as ranks that are read from outside, each in the cluster of its server's ranks."""
    if not chosen:
        return []
    from pdctl.introspect.ranks import found_ranks  # loads what knows the engine

    clusters = {_server(rank.identity)[1:]: rank.identity.cluster for rank in ranks if rank.live}
    return [
        replace(r, identity=msgspec.structs.replace(r.identity, cluster=clusters.get(_server(r.identity)[1:], "")))
        for r in found_ranks(chosen, timeout_s)
    ]


def _away(env: Mapping[str, str], timeout_s: float, rank_timeout_s: float, problems: list[str]) -> list[FoundRank]:
    """Return the ranks on other hosts that the environment names."""
    if not _elsewhere(env):
        return []
    from pdctl.targets.sources import endpoints  # only where something is remote

    return endpoints.find(env, timeout_s, rank_timeout_s, problems)


def _elsewhere(env: Mapping[str, str]) -> list[str]:
    """Return the endpoints and stores that the environment names, as they are written."""
    named = env.get("PDCTL_STORE", "").replace(",", " ").split()
    stores = [f"store {word}" for word in named if word.lower() != "off"]
    return [*env.get("PDCTL_ENDPOINT", "").replace(",", " ").split(), *stores]


def _folders(env: Mapping[str, str], away: Sequence[str]) -> tuple[list[Path], Path | None]:
    """Return the run directories and the record directory to look into: none of the usual ones where ranks are elsewhere."""
    run = paths.run_dirs(env) if not away or env.get("PDCTL_RUN_DIR") else []
    record = paths.record_dir(env) if not away or env.get("PDCTL_RECORD_DIR") else None
    return run, record


def _traces(folder: Path, problems: list[str], timeout_s: float, began: float) -> Iterable[Trace]:
    """Yield the traces in a directory, for instance one trace from each of several hosts.

    timeout_s: for all of them, from ``began`` on, on the monotonic clock.
    """
    for path in registration.files(folder, ".pdtrace", problems, began + timeout_s):
        from pdctl.trace.container import open_cached  # as above

        try:
            yield open_cached(path, timeout_s=timeout_s, spent_s=time.monotonic() - began)
        except PdctlError as error:
            problems.append(error.message)


def _traced(trace: Trace, problems: list[str]) -> Iterable[FoundRank]:
    """Yield the ranks of a trace: those recorded, and those that were missing when it was made, with the reason."""
    problems += trace.manifest.problems
    entries = {Path(rank.member).name: rank for rank in trace.manifest.ranks if rank.member}
    for name, entry in sorted(entries.items()):
        member, lived = f"{trace.path}:{entry.member}", entry.state == "live"
        rank = _recorded(trace.folder / name, member, problems, False)
        if rank is not None:
            yield replace(rank, member=member, seen_ns=entry.taken_mono_ns, seen_live=lived)
    for entry in trace.manifest.ranks:
        if not entry.member and entry.identity.pid:
            yield FoundRank(entry.identity, "recorded", recording_off=entry.reason)


def order(identity: Identity) -> tuple[str, int, str, int, int, int, int]:
    """Return the sort key of ranks: cluster, prefill before decode, service, then dp, pp, cp, tp."""
    i = identity
    return (i.cluster, 0 if i.role == "prefill" else 1, f"{i.role} {i.service} {i.instance}", i.dp, i.pp, i.cp, i.tp)


def _key(identity: Identity) -> str:
    if not identity.pid:
        return identity.service  # one of which only the address is known
    return f"{identity.host}|{paths.stem(identity.pid, identity.proc_start)}"


def _usable(folder: Path, env: Mapping[str, str], others: list[str]) -> bool:
    """Return whether this user's ranks may have files in ``folder``.

    others: gets a note about a default directory that another user made; ranks do not use it. Raises PdctlError (UNREACHABLE)
    for any other directory that is not private to this user, or can't be examined.
    """
    try:
        found = folder.lstat()
        why = paths.why_not_private(folder, found)
    except FileNotFoundError:
        return False
    except OSError as error:
        why = f"{folder} can't be looked at: {error.strerror}"
    else:
        if why and found.st_uid != os.geteuid() and not paths.named(env, folder):
            others.append(why)
            return False
    if why:
        raise PdctlError(
            why, "Ranks refuse such a directory too: chmod 0700 it, or run pdctl as the user it belongs to."
        )
    return True


def _recordings(folder: Path, problems: list[str], here: bool, until: float) -> Iterable[FoundRank]:
    for path in registration.files(folder, paths.RECORDING_SUFFIX, problems, until):
        rank = _recorded(path, str(path), problems, here)
        if rank is not None:
            yield rank


def _recorded(path: Path, name: str, problems: list[str], here: bool) -> FoundRank | None:
    """Return the rank of a recording, None where it is refused. name: what the user knows it by."""
    try:
        header = read_header(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{name}: {error.strerror}")
        return None
    except ValueError as error:
        problems.append(f"{name}: {error}")
        return None
    identity = header.identity
    process = look(identity.pid) if here else NO_PROCESS
    live = here and process.runs_since(identity.proc_start)
    return FoundRank(
        identity=identity,
        state="live" if live else "dead" if here else "recorded",
        endpoint_off="it has no registration, only a recording" if live else "",
        recording=path,
        recording_size=header.size,
        process=process,
    )


def _current(ranks: list[FoundRank]) -> tuple[list[FoundRank], int]:
    """Leave out dead ranks of earlier starts.

    Kept are the instances with a live rank and, where no instance of a service lives, its newest one.
    """
    services: dict[tuple[str, str], list[FoundRank]] = {}
    for rank in ranks:
        services.setdefault((rank.identity.cluster, rank.identity.service), []).append(rank)
    kept: list[FoundRank] = []
    for members in services.values():
        instances = {rank.identity.instance for rank in members if rank.live}
        if not instances:
            instances = {max(members, key=lambda rank: rank.identity.started_wall_ns).identity.instance}
        kept += [rank for rank in members if rank.identity.instance in instances]
    return kept, len(ranks) - len(kept)


def _absent(ranks: list[FoundRank], why: str) -> list[FoundRank]:
    """Return a row for each rank that a server's sizes promise and that was not found."""
    servers: dict[tuple[str, str, str], list[FoundRank]] = {}
    for rank in ranks:
        servers.setdefault(_server(rank.identity), []).append(rank)
    absent: list[FoundRank] = []
    for members in servers.values():
        if members[0].identity.role == "unknown":
            continue  # its place is from its process's title, which tells no sizes
        seen = {_place(rank.identity) for rank in members}
        one = members[0].identity
        sizes = (one.dp_size, one.pp_size, one.cp_size, one.tp_size)
        for dp, pp, cp, tp in product(*(range(min(size, MAX_ABSENT)) for size in sizes)):
            if len(absent) >= MAX_ABSENT:
                break
            if (dp, pp, cp, tp) not in seen:
                identity = msgspec.structs.replace(
                    one,
                    dp=dp,
                    pp=pp,
                    cp=cp,
                    tp=tp,
                    pid=0,
                    proc_start=0,
                    world_rank=-1,
                    host="",
                    pdctl_version="",
                    groups=(),
                    armed=False,
                    loaded_by="",
                )
                absent.append(FoundRank(identity, "no agent", endpoint_off=why))
    return absent


def _server(identity: Identity) -> tuple[str, str, str]:
    return identity.cluster, identity.service, identity.instance


def _place_of(identity: Identity) -> tuple[tuple[str, str, str], tuple[int, int, int, int]]:
    return _server(identity), _place(identity)


def _place(identity: Identity) -> tuple[int, int, int, int]:
    return identity.dp, identity.pp, identity.cp, identity.tp


def refresh(rank: FoundRank) -> FoundRank:
    """Return ``rank`` with its process looked at again, where that is on this host."""
    if rank.access is not None:
        return rank
    process = look(rank.identity.pid)
    unseen = not (process.state or rank.process.state)  # in another pid namespace, then as now
    live = rank.live and (process.runs_since(rank.identity.proc_start) or unseen)
    return replace(rank, process=process, state="dead" if rank.live and not live else rank.state)


__all__ = ["Found", "FoundRank", "discover", "order", "refresh"]
