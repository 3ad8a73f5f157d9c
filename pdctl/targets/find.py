"""Find the ranks: from the run directory, from recordings of ended ranks, and from the server sizes that ranks report.

No rank is asked here. Only files and /proc are read. One connection is tried to a socket whose process can't be seen, for
instance from outside a container.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol import paths
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.files import is_folder
from pdctl.protocol.processes import look_closely
from pdctl.protocol.rank import FoundRank
from pdctl.targets import registration, servers
from pdctl.targets.places import OFF, OutsideSetting, Places
from pdctl.targets.sources import containers, recordings
from pdctl.targets.sources.agentless import NONE, Agentless, attach_hint, select_processes

if TYPE_CHECKING:
    from pdctl.introspect.find import Candidate
    from pdctl.targets.far_connections import FarConnections


@dataclass(frozen=True)
class Found:
    """The ranks found. earlier: dead ranks of earlier starts, left out. problems: files that could not be read.

    salts: salts of the traces with hashed names. elsewhere: endpoints and stores that were asked. took_s: the part of the
    command's time that was spent by then. agentless: processes of this host without an agent; they are looked for if
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
    places: Places,
    *,
    every_start: bool = False,
    timeout_s: float = 10.0,
    rank_timeout_s: float = 2.0,
    outside: bool = False,
    far: FarConnections | None = None,
) -> Found:
    """Return the ranks of this host, or those at the endpoints and in the stores of ``places``.

    every_start: also return dead ranks of earlier starts of a server. Ranks at endpoints and in stores get rank_timeout_s
    together, stores half of timeout_s. With endpoints or stores, directories are searched only where they are named; a rank
    found there too is reached there. outside: also read agentless ranks of this host, within rank_timeout_s
    (:func:`pdctl.targets.sources.agentless.select_processes`). far: connections to other hosts, which stay open for a client.

    Raises PdctlError (UNREACHABLE) for a directory that is not private to this user or can't be read.
    """
    began = time.monotonic()
    problems: list[str] = []
    others: list[str] = []
    claims: list[registration.Claim] = []
    away = _away(places, timeout_s, rank_timeout_s, problems, far)
    until = time.monotonic() + timeout_s / 2  # asking the ranks has to have some of it
    elsewhere = places.elsewhere
    # With hosts the directories named are theirs.
    folders = places.run_dirs if not elsewhere or (places.run_dir_named and not places.hosts) else ()
    records = (places.record_dir,) if not elsewhere or (places.record_dir_named and not places.hosts) else ()
    ranks: dict[str, FoundRank] = {}
    for folder in folders:
        if _usable(folder, places, others):
            _join(ranks, registration.read(folder, problems, others, claims, until))
    _join(ranks, away)
    if places.containers and not elsewhere and not places.run_dir_named:
        _join(ranks, containers.find(problems, others, claims, until))
    problems += _claimed(claims, ranks.values())
    for folder in records:
        if _usable(folder, places, others):
            _join(ranks, recordings.of_folder(folder, problems, True, until))
    agentless = NONE
    if (outside or not ranks) and (not elsewhere or (places.outside != OutsideSetting() and not places.hosts)):
        agentless = select_processes(places, list(ranks.values()))
    if outside:
        _join(ranks, _outside(agentless.selected, list(ranks.values()), rank_timeout_s))
    chosen, earlier = (list(ranks.values()), 0) if every_start else servers.select_current(list(ranks.values()))
    where = "no agent of this rank registered here"
    if elsewhere:
        where = "it is at none of the endpoints that answered, nor in the store"
        if places.pods is not None:
            where = "it is in none of the pods that answered"
        quiet = [rank.endpoint for rank in chosen if rank.identity.tp < 0 and rank.endpoint.startswith("tcp://")]
        if quiet:
            where += f"; {', '.join(quiet[:4])}{' …' if len(quiet) > 4 else ''} did not answer"
    chosen += servers.absent_ranks(chosen, where)
    if not chosen:
        problems += others  # whoever finds nothing wants to know of all that was there
    return Found(
        ranks=_sorted(chosen),
        earlier=earlier,
        problems=tuple(problems),
        looked_in=(*folders, *records),
        elsewhere=elsewhere,
        took_s=time.monotonic() - began,
        agentless=agentless,
        outside=outside,
        outside_setting=places.outside,
        others=tuple(others),
    )


def load_source(source: Path, *, every_start: bool = False, timeout_s: float = 10.0, spent_s: float = 0.0) -> Found:
    """Return the ranks of a trace, or of the traces and recordings in a directory. Every rank counts as dead.

    every_start, timeout_s: as for :func:`discover`. spent_s: the part of that time used before. Raises PdctlError
    (UNREACHABLE) for an unusable trace.
    """
    began = time.monotonic() - spent_s
    problems: list[str] = []
    ranks: dict[str, FoundRank] = {}
    if is_folder(source):
        traces = list(recordings.open_traces(source, problems, timeout_s, began))
        _join(ranks, recordings.of_folder(source, problems, False, began + timeout_s))
    else:
        from pdctl.trace.reader import open_cached  # loads what reads ZIP files

        traces = [open_cached(source, timeout_s=timeout_s, spent_s=time.monotonic() - began)]
    for trace in traces:
        _join(ranks, recordings.of_trace(trace, problems))
    chosen, earlier = (list(ranks.values()), 0) if every_start else servers.select_current(list(ranks.values()))
    reasons = {servers.rank_place(e.identity): e.reason for t in traces for e in t.manifest.ranks if not e.member}
    where = f"no recording of this rank in {source}"
    for rank in servers.absent_ranks(chosen, where):
        chosen.append(replace(rank, endpoint_off=reasons.get(servers.rank_place(rank.identity), where)))
    return Found(
        ranks=_sorted(chosen),
        earlier=earlier,
        problems=tuple(problems),
        looked_in=(source,),
        salts=tuple(dict.fromkeys(t.manifest.salt for t in traces if t.manifest.salt)),
        took_s=time.monotonic() - began,
    )


def _join(ranks: dict[str, FoundRank], more: Iterable[FoundRank]) -> None:
    """Add those of ``more`` whose process is not among ``ranks`` yet."""
    for rank in more:
        ranks.setdefault(servers.process_key(rank.identity), rank)


def _sorted(ranks: Iterable[FoundRank]) -> tuple[FoundRank, ...]:
    return tuple(sorted(ranks, key=lambda rank: servers.order(rank.identity)))


def _claimed(claims: Iterable[registration.Claim], ranks: Iterable[FoundRank]) -> list[str]:
    """Return problems for other users' files that claim to belong to the servers found: those may be incomplete."""
    found = {servers.server_of(rank.identity) for rank in ranks}
    return [f"{claim.path} claims to be of {claim.server[1]}; {claim.why}" for claim in claims if claim.server in found]


def _outside(chosen: Sequence[Candidate], ranks: Sequence[FoundRank], timeout_s: float) -> list[FoundRank]:
    """Return these processes as ranks that are read from outside, each in the cluster of its server's ranks."""
    if not chosen:
        return []
    from pdctl.introspect.ranks import found_ranks  # loads what knows the engine

    clusters = {servers.server_of(rank.identity)[1:]: rank.identity.cluster for rank in ranks if rank.live}
    return [
        replace(
            r, identity=msgspec.structs.replace(r.identity, cluster=clusters.get(servers.server_of(r.identity)[1:], ""))
        )
        for r in found_ranks(chosen, timeout_s)
    ]


def _away(
    places: Places, timeout_s: float, rank_timeout_s: float, problems: list[str], far: FarConnections | None
) -> list[FoundRank]:
    """Return the ranks on other hosts."""
    found: list[FoundRank] = []
    if places.pods is not None:
        from pdctl.targets.sources import kubernetes

        found += kubernetes.find(places, places.pods, timeout_s, rank_timeout_s, problems)
    if places.endpoints or places.stores:
        from pdctl.targets.sources import endpoints  # only where something is remote

        found += endpoints.find(places, timeout_s, rank_timeout_s, problems, far)
    if places.hosts:
        from pdctl.targets.sources import hosts

        found += hosts.find(places, timeout_s, rank_timeout_s, problems)
    return found


def _usable(folder: Path, places: Places, others: list[str]) -> bool:
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
        if why and found.st_uid != os.geteuid() and not places.named(folder):
            others.append(why)
            return False
    if why:
        raise PdctlError(
            why, "Ranks refuse such a directory too: chmod 0700 it, or run pdctl as the user it belongs to."
        )
    return True


def refresh(rank: FoundRank) -> FoundRank:
    """Return ``rank`` with its process looked at again, where that is on this host."""
    if rank.access is not None:
        return rank
    process = look_closely(rank.identity.pid)
    unseen = not (process.state or rank.process.state)  # in another pid namespace, then as now
    live = rank.live and (process.runs_since(rank.identity.proc_start) or unseen)
    return replace(rank, process=process, state="dead" if rank.live and not live else rank.state)


__all__ = ["Found", "FoundRank", "discover", "load_source", "refresh"]
