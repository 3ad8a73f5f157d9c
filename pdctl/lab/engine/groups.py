"""The process groups of one rank, as SGLang's ``distributed/parallel_state.py`` lays them out, all over Gloo.

A dp rank is a torch world of its own. With dp attention the dp ranks of a server are one world. In it, world rank =
(pp × dp_size + dp) × tp_size + tp, where tp is the rank in attention TP.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from pdctl.lab.engine.transport import HOST

Group = Any
"""A torch.distributed.ProcessGroup."""


@dataclass(frozen=True)
class Groups:
    """Groups of one rank. attn_tp_cpu carries polls and requests; tp carries the model's own collectives.

    dp_rank, dp_size: of the dp ranks in this world, 0 and 1 without dp attention. They share the tp group.
    members: world ranks of each group by the field's name of it. store: address of the world's TCPStore.
    """

    world_rank: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int
    attn_tp_cpu: Group
    attn_cp_cpu: Group
    tp: Group
    pp: Group
    world: Group
    members: dict[str, tuple[int, ...]]
    store: str

    @property
    def pp_first(self) -> bool:
        """Whether this is the first pipeline stage."""
        return self.pp_rank == 0

    @property
    def pp_last(self) -> bool:
        """Whether this is the last pipeline stage."""
        return self.pp_rank == self.pp_size - 1


def wait_for_file(path: Path, deadline: float) -> str:
    """Return the text of ``path`` once it exists. Raises TimeoutError at ``deadline`` (monotonic seconds)."""
    while True:
        try:
            return path.read_text()
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path.name} did not appear") from None
            time.sleep(0.01)


def make_groups(
    port_file: Path,
    tp: tuple[int, int],
    pp: tuple[int, int],
    dp: tuple[int, int],
    timeout_s: float,
    publish: Callable[[Path, str], None],
) -> Groups:
    """Join the world (its first rank hosts the store on a free port) and make all groups. tp, pp, dp: (rank, size)."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    (tp_rank, tp_size), (pp_rank, pp_size), (dp_rank, dp_size) = tp, pp, dp
    stage_size = dp_size * tp_size
    rank = pp_rank * stage_size + dp_rank * tp_size + tp_rank
    timeout = datetime.timedelta(seconds=timeout_s)
    if rank == 0:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            HOST, 0, None, is_master=True, timeout=timeout, wait_for_workers=False
        )
        publish(port_file, str(store.port))
    else:
        port = int(wait_for_file(port_file, time.monotonic() + 60))
        store = dist.TCPStore(HOST, port, None, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=stage_size * pp_size, timeout=timeout)
    mine: dict[str, Group] = {}
    members: dict[str, tuple[int, ...]] = {"world": tuple(range(stage_size * pp_size))}

    def add(kind: str, ranks: list[int]) -> None:
        group = dist.new_group(ranks, timeout=timeout, backend="gloo")  # every rank takes part in making every group
        if rank in ranks:
            mine[kind], members[kind] = group, tuple(ranks)

    for stage in range(pp_size):
        ranks = list(range(stage * stage_size, (stage + 1) * stage_size))
        add("tp", ranks)
        for first in range(0, stage_size, tp_size):
            add("attn-tp", ranks[first : first + tp_size])
        for one in ranks:
            add("attn-cp", [one])
    for column in range(stage_size):
        add("pp", [stage * stage_size + column for stage in range(pp_size)])
    return Groups(
        rank, tp_rank, tp_size, pp_rank, pp_size, dp_rank, dp_size, mine["attn-tp"], mine["attn-cp"], mine["tp"], mine["pp"],
        dist.group.WORLD, members, f"{HOST}:{store.port}",
    )  # fmt: skip


def broadcast_pyobj(data: Any, first: bool, group: Group, src: int) -> Any:
    """Broadcast a plain object from world rank ``src``: its size, then its bytes (SGLang: ``utils.broadcast_pyobj``).

    Only the size when there is nothing to send. Returns the object; msgpack instead of pickle.
    """
    size = torch.zeros(1, dtype=torch.long)
    payload = msgspec.msgpack.encode(data) if first and data else b""
    if first:
        size[0] = len(payload)
    dist.broadcast(size, src=src, group=group)
    length = int(size.item())
    if length == 0:
        return []
    tensor = (
        torch.frombuffer(bytearray(payload), dtype=torch.uint8) if first else torch.empty(length, dtype=torch.uint8)
    )
    dist.broadcast(tensor, src=src, group=group)
    return data if first else msgspec.msgpack.decode(tensor.numpy().tobytes())


def send_pyobj(data: Any, group: Group, dst: int) -> None:
    """Send a plain object to world rank ``dst`` (SGLang: ``point_to_point_pyobj``)."""
    payload = torch.frombuffer(bytearray(msgspec.msgpack.encode(data)), dtype=torch.uint8)
    dist.send(torch.tensor([len(payload)]), dst, group=group)
    dist.send(payload, dst, group=group)


def recv_pyobj(group: Group, src: int) -> Any:
    """Receive a plain object from world rank ``src``."""
    size = torch.zeros(1, dtype=torch.long)
    dist.recv(size, src, group=group)
    payload = torch.empty(int(size.item()), dtype=torch.uint8)
    dist.recv(payload, src, group=group)
    return msgspec.msgpack.decode(payload.numpy().tobytes())
