"""Who a lab rank is, and which process groups it is in."""

from __future__ import annotations

import os
import socket
from typing import Any

from pdctl import __version__
from pdctl.engines.shared import group_number
from pdctl.protocol.model import GroupInfo, Identity
from pdctl.protocol.processes import look

KINDS = ("attn-tp", "attn-cp", "tp", "pp", "world")


def identify(scheduler: Any) -> tuple[Identity, dict[int, int]]:
    """Return the identity of the rank and the place in Identity.groups of each torch group by its ``id()``."""
    config, groups, role = scheduler.config, scheduler.groups, scheduler.role
    shape = config.shape(role)
    service = f"{scheduler.server}@lab:{config.name}"
    instance = f"{service}/{scheduler.start}"
    attention = config.dp_attention and shape.dp > 1
    world = instance if attention else f"{instance}/dp{scheduler.dp_rank}"
    objects = (groups.attn_tp_cpu, groups.attn_cp_cpu, groups.tp, groups.pp, groups.world)
    infos = tuple(
        GroupInfo(kind=kind, ranks=groups.members[kind], world=world, fr_id=group_number(group))
        for kind, group in zip(KINDS, objects, strict=True)
    )
    identity = Identity(
        engine="lab",
        engine_version=version(config),
        pdctl_version=__version__,
        role=role,
        host=socket.gethostname(),
        pid=os.getpid(),
        proc_start=look(os.getpid()).start,
        started_wall_ns=0,
        started_mono_ns=0,
        instance=instance,
        service=service,
        cluster=config.name,
        world=world,
        world_rank=groups.world_rank,
        dp=scheduler.dp_rank,
        dp_size=shape.dp,
        pp=groups.pp_rank,
        pp_size=groups.pp_size,
        tp=groups.tp_rank,
        tp_size=groups.tp_size,
        dp_attention=attention,
        backend=scheduler.transport.name,
        lacks=tuple(config.without),
        groups=infos,
    )
    return identity, {id(group): index for index, group in enumerate(objects)}


def version(config: Any) -> str:
    """Return the lab's version with the fixes it was started without: ``0.1.0 without gate, receiver``."""
    left_out = f" without {', '.join(config.without)}" if config.without else ""
    return f"{__version__}{left_out}"
