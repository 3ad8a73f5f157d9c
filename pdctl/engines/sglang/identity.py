"""The identity of an SGLang rank, and its process groups."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl import __version__
from pdctl.engines.sglang import revert, seams
from pdctl.engines.sglang.backends import backend_of
from pdctl.engines.sglang.elements import reduced_type
from pdctl.engines.shared import group_number
from pdctl.protocol.model import GroupInfo, Identity
from pdctl.protocol.processes import look


@dataclass(frozen=True)
class Around:
    """Facts about the rank's process, beside its scheduler. :func:`here` returns them for this process.

    parent: pid and start of its server process, as the rank sees them. world_rank: its number in torch's world.
    ranks_of, number_of: functions for the members of a torch group, and for its number in the flight recorder. agreed:
    function from this node's name of the server start to the name shared by all nodes. reverted: protections that were taken
    out. modules: the loaded modules, None for this process.
    """

    host: str
    pid: int
    proc_start: int
    parent: tuple[int, int]
    world_rank: int
    ranks_of: Callable[[Any], Iterable[int]]
    number_of: Callable[[Any], int]
    agreed: Callable[[str], str]
    reverted: tuple[str, ...] = ()
    modules: Mapping[str, Any] | None = None


def here() -> Around:
    """Return what this process is."""
    pid, parent = os.getpid(), os.getppid()
    return Around(
        host=socket.gethostname(),
        pid=pid,
        proc_start=look(pid).start,
        parent=(parent, look(parent).start),
        world_rank=_world_rank(),
        ranks_of=_ranks,
        number_of=group_number,
        agreed=_agreed,
        reverted=revert.parse_reverts()[0],
    )


class Groups:
    """The rank's process groups by torch object: their number in Identity.groups and their kind."""

    def __init__(self, scheduler: Any, world: str, around: Around) -> None:
        self.infos: list[GroupInfo] = []
        self._index: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._held: list[Any] = []  # what is known by id() must stay alive
        for kind, path in seams.GROUPS:
            group = seams.follow(scheduler, path)
            if group is None or id(group) in self._index:
                continue
            self._index[id(group)] = len(self.infos)
            self._kinds[id(group)] = kind
            self._held.append(group)
            members = tuple(around.ranks_of(group))
            self.infos.append(GroupInfo(kind=kind, ranks=members, world=world, fr_id=around.number_of(group)))
        for kind, path in seams.DEVICE_GROUPS:
            group = seams.follow(scheduler, path)
            if group is not None and id(group) not in self._kinds:
                self._kinds[id(group)] = kind
                self._held.append(group)

    def number(self, group: Any) -> int:
        """Return the group's place in Identity.groups, -1 for a group of one in which no polls can differ.

        Polls are reduced over the attention-TP group first; that one counts at any size. Raises KeyError for a group
        that is not there.
        """
        number = self._index[id(group)]
        info = self.infos[number]
        return number if info.size > 1 or info.kind == "attn-tp" else -1

    def kinds(self) -> list[tuple[Any, str]]:
        """Return every group that is known with its kind."""
        return [(group, self._kinds[id(group)]) for group in self._held]

    def kind(self, group: Any) -> str:
        """Return the group's kind, "" for an unknown one."""
        return self._kinds.get(id(group), "")

    def of_kind(self, kind: str) -> GroupInfo | None:
        """Return the first group of a kind, None without one."""
        return next((info for info in self.infos if info.kind == kind), None)


def _ranks(group: Any) -> list[int]:
    import torch.distributed

    return list(torch.distributed.get_process_group_ranks(group))


def _world_rank() -> int:
    import torch.distributed

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def identify(scheduler: Any, around: Around | None = None) -> tuple[Identity, Groups]:
    """Return the identity of the rank that ``scheduler`` runs in, and its groups. around: of its process, this one.

    tp and cp are places in the attention-TP and attention-CP groups, which the polls are reduced over. The agent fills
    in what it knows better (pid, start times, ``armed``, ``loaded_by``, the cluster's name).
    """
    around = around or here()
    role = seams.role_of(scheduler)
    dp_attention = bool(seams.server_arg(scheduler, "enable_dp_attention", False))
    dp = seams.coordinate(scheduler, "dp_rank", seams.coordinate(scheduler, "attn_dp_rank", 0))
    dp_size = max(seams.coordinate(scheduler, "dp_size", 1), int(seams.server_arg(scheduler, "dp_size", 1)))
    service = f"{role}@{around.host}:{seams.server_arg(scheduler, 'port', 0)}"
    instance = _instance(scheduler, service, around)
    service = _service(role, instance) or service
    # One torch world serves the whole server, except that dp replicas without dp attention have one each.
    world = instance if dp_attention or dp_size == 1 else f"{instance}/dp{dp}"
    groups = Groups(scheduler, world, around)
    me = around.world_rank
    tp, tp_size = _place(groups, "attn-tp", me, scheduler, "attn_tp_rank", "attn_tp_size")
    cp, cp_size = _place(groups, "attn-cp", me, scheduler, "attn_cp_rank", "attn_cp_size")
    pp, pp_size = _place(groups, "pp", me, scheduler, "pp_rank", "pp_size")
    identity = Identity(
        engine="sglang",
        engine_version=seams.engine_version(around.modules),
        pdctl_version=__version__,
        role=role,
        host=around.host,
        pid=around.pid,
        proc_start=around.proc_start,
        started_wall_ns=0,
        started_mono_ns=0,
        instance=instance,
        service=service,
        cluster="",
        world=world,
        world_rank=me,
        dp=dp,
        dp_size=dp_size,
        pp=pp,
        pp_size=pp_size,
        cp=cp,
        cp_size=cp_size,
        tp=tp,
        tp_size=tp_size,
        dp_attention=dp_attention,
        backend=str(seams.server_arg(scheduler, "disaggregation_transfer_backend", ""))
        if role != seams.UNIFIED
        else "",
        lacks=_lacks(scheduler, role, around),
        groups=tuple(groups.infos),
        element=reduced_type(around.modules) if role != seams.UNIFIED else "",
    )
    return identity, groups


def _lacks(scheduler: Any, role: str, around: Around) -> tuple[str, ...]:
    own = seams.lacks(role, around.modules) or (around.reverted if role == "decode" else ())
    return own if role == seams.UNIFIED else (*own, *backend_of(scheduler, around.modules).lacks())


def _place(groups: Groups, kind: str, me: int, scheduler: Any, rank: str, size: str) -> tuple[int, int]:
    info = groups.of_kind(kind)
    if info is not None and me in info.ranks:
        return info.ranks.index(me), info.size
    return seams.coordinate(scheduler, rank, 0), seams.coordinate(scheduler, size, 1)


def _instance(scheduler: Any, service: str, around: Around) -> str:
    """Return the name of one start of one server.

    On one node all its schedulers have the same parent process. Over several nodes they agree on a name once.
    """
    parent, start = around.parent
    mine = f"{service}/{_boot_id()[:8]}.{parent}.{start}"
    if int(seams.server_arg(scheduler, "nnodes", 1)) <= 1:
        return mine
    return around.agreed(mine)


def _service(role: str, instance: str) -> str:
    """Return the service of a server over several nodes, which is called by the one that named it; "" where it is by none."""
    at = instance.rpartition("/")[0].partition("@")[2]
    return f"{role}@{at}" if at else ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _agreed(mine: str) -> str:
    """Return the name that the job's first rank wrote into the job's rendezvous store; ``mine`` without a store.

    It is read once, while the rank starts. The store is a key-value server; this is no collective. Each start has its
    own store.
    """
    import torch.distributed.distributed_c10d as c10d

    try:
        store = c10d._get_default_store()
        return bytes(store.compare_set("pdctl/instance", "", mine)).decode()
    except Exception:  # torch raises what the store's kind raises; a rank by itself is better than none
        return mine
