"""The fallback for a silent agent: its rank is read from outside, if the kernel permits it and PDCTL_OUTSIDE allows it.

An agent is silent if its socket is gone, if its thread has ended, or if it never gets the GIL. The process and its registration
are still the same, so the rank stays in its groups.
"""

from __future__ import annotations

from dataclasses import replace

from pdctl.protocol.model import Status
from pdctl.protocol.processes import look
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from pdctl.targets.silence import unreachable

ENGINE = "sglang"
_SILENT = (Silence.REFUSED, Silence.NO_SOCKET, Silence.TIMED_OUT)
_PARTS = 3
"""Of a command's time: one to find out who is silent, one to open these, one at least for what was asked."""


def apply_fallback(found: Found, client: Client) -> tuple[Found, list[Answer[Status]]]:
    """Return ``found``, with ``agent_off`` set for ranks that have a silent agent and can be read from outside.

    Return also the status answers that were asked for to find this out.

    If the client's time is less than three times its time for one rank, only agents that refuse at once count as silent.
    """
    there = [rank for rank in found.ranks if found.outside_setting.means(rank.identity.pid) and _could_be_read(rank)]
    if not there:
        return found, []
    wait_s = client.rank_timeout_s
    silent: dict[int, tuple[FoundRank, str]] = {}
    statuses: list[Answer[Status]] = []
    for rank in there:
        why = unreachable(rank)
        if why is not None and why[0] in _SILENT:
            silent[id(rank)] = (rank, why[1])
    if client.deadline.left(_PARTS * wait_s) >= _PARTS * wait_s:
        statuses = client.ask([rank for rank in there if id(rank) not in silent], "status", Status)
        for answer in statuses:
            if answer.silence in _SILENT:
                silent[id(answer.rank)] = (answer.rank, answer.reason)
    if not silent:
        return found, statuses
    from pdctl.introspect.ranks import readable  # loads what knows the engine

    within_s = min(wait_s, client.deadline.left(3600.0) / (_PARTS - 1))
    ranks = [rank for rank, _ in silent.values()]
    read = {id(rank) for rank, can in zip(ranks, readable(ranks, within_s), strict=True) if can}
    ranks_now = tuple(_outside(r, silent[id(r)][1]) if id(r) in read else r for r in found.ranks)
    return replace(found, ranks=ranks_now), statuses


def _could_be_read(rank: FoundRank) -> bool:
    here = rank.state == "live" and rank.access is None and rank.identity.engine == ENGINE
    return here and look(rank.identity.pid).runs_since(rank.identity.proc_start)


def _outside(rank: FoundRank, why: str) -> FoundRank:
    return replace(rank, state="outside", agent_off=why)
