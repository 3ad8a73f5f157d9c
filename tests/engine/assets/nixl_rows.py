"""Prints, as JSON, what a decode rank gets of a metadata row over real NIXL, with each fault; both agents are in this process.

The manager sends as ``NixlKVManager.send_aux`` does up to 0.5.22: with a notification that is bound to the row.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from pdctl.engines.base import Hooks
from pdctl.engines.sglang.backends import backend_of
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.table import FaultTable
from pdctl.recording.null import NullRecorder

PATIENCE_S = 60.0
IDS, ROOMS = np.zeros((4, 4), np.int32), np.zeros((4, 8), np.uint64)
THERE = np.zeros_like(IDS), np.zeros_like(ROOMS)


def agent(name: str, *arrays: Any) -> Any:
    made = nixl_agent(name, nixl_agent_config(backends=[], num_threads=0))
    made.create_backend("UCX", {})
    made.register_memory([(array.ctypes.data, array.nbytes, 0, "") for array in arrays], "DRAM")
    return made


class NixlKVManager:
    def __init__(self, own: Any) -> None:
        self.agent = own
        self.kv_args = SimpleNamespace(
            aux_data_ptrs=[IDS.ctypes.data, ROOMS.ctypes.data], aux_item_lens=[IDS[0].nbytes, ROOMS[0].nbytes]
        )
        self.decode_kv_args_table = {"decode": SimpleNamespace(decode_tp_rank=1, dst_aux_ptrs=[1, 2])}
        self.transfer_infos = {77: {"decode": SimpleNamespace(room=77, dst_aux_index=2)}}

    def update_transfer_status(self) -> None:
        """Say that it has notifications."""

    def send_aux(self, peer: str, index: int, targets: list[int], slot: int, notif: str) -> Any:
        args = self.kv_args
        pairs = list(zip(args.aux_data_ptrs, args.aux_item_lens, strict=True))
        here = self.agent.get_xfer_descs([(base + n * index, n, 0) for base, n in pairs], "DRAM")
        places = [(base + n * slot, n, 0) for base, (_, n) in zip(targets, pairs, strict=True)]
        there = self.agent.get_xfer_descs(places, "DRAM")
        handle = self.agent.initialize_xfer("WRITE", here, there, peer, notif.encode())
        assert self.agent.transfer(handle) != "ERR"
        return handle


prefill, decode = agent("prefill", IDS, ROOMS), agent("decode", *THERE)
prefill.add_remote_agent(decode.get_agent_metadata())
decode.add_remote_agent(prefill.get_agent_metadata())
manager, hooks, table = NixlKVManager(prefill), Hooks(), FaultTable(True)
tensor = SimpleNamespace(device=SimpleNamespace(type="cpu"), data_ptr=lambda: ROOMS.ctypes.data)
scheduler = SimpleNamespace(
    disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager),
    disagg_metadata_buffers=SimpleNamespace(bootstrap_room=tensor),
)
backend_of(scheduler).install(hooks, NullRecorder("a test"), table, "prefill")


def heard(limit_s: float) -> list[str]:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = [message.decode() for messages in decode.get_new_notifs().values() for message in messages]
        if found:
            return found
        time.sleep(0.01)
    return []


def send(kind: str = "") -> dict[str, Any]:
    """Send the row with a fault of this kind; return its room there and what is heard, before and after the fault ends."""
    IDS[1], ROOMS[1, 0] = 5, 77
    for array in THERE:
        array[:] = 0
    if kind:
        delay_s = 600.0 if kind in ("delay-metadata", "stall-transfer") else 0.0
        table.arm(Fault("f", kind, delay_s, float("inf"), None, "decode:tp1", (AimedRank(tp=1),)))
    try:
        handle = manager.send_aux("decode", 1, [array.ctypes.data for array in THERE], 2, "77_aux")
    except RuntimeError as error:
        table.heal()
        return {"error": str(error)}
    end = time.monotonic() + PATIENCE_S
    while (state := manager.agent.check_xfer_state(handle)) == "PROC" and time.monotonic() < end:
        time.sleep(0.01)
    quiet = kind in ("stall-transfer", "drop-status")
    told = {"state": state, "heard": heard(1.0 if quiet else PATIENCE_S), "room": int(THERE[1][2, 0])}
    ROOMS[1, 0] = 88  # the engine gives the slot to the next request
    table.heal()
    while table.any and time.monotonic() < end:
        time.sleep(0.01)
    return {**told, "later": heard(PATIENCE_S if quiet else 0.0), "room_later": int(THERE[1][2, 0])}


KINDS = ("delay-metadata", "drop-metadata", "corrupt-room", "stall-transfer", "drop-status", "fail-transfer")
print(json.dumps({"none": send(), **{kind: send(kind) for kind in KINDS}, "after": send(), "errors": hooks.errors()}))
os._exit(0)  # NIXL's own threads need not be waited for
