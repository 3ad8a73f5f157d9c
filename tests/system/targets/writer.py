"""A rank with the real agent that writes metadata rows as a transfer worker does: through the fault table, on a thread.

usage: python -m tests.system.targets.writer LOG [--role prefill|decode] [--tp T] [--every SECONDS] [--no-site]

Each room's row goes to tp0 and tp1 of the decode side; what is written is appended to LOG as ``ROOM TP how``, with how
being direct or late. The main thread waits in C for ever, as one that is stuck in a collective. A thread named on
standard input ends, by an exception that is raised in it; ``time is up`` there lets the time of all faults be over.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import threading
import time

import msgspec

from pdctl.agent.core import Agent
from pdctl.agent.sinks import Recorder
from pdctl.faults.kinds import HELD_METADATA
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Identity, Seam
from tests.system.targets.tiny import TinyAdapter

ADDRESS = "127.0.0.1:90{tp:02d}"
TIME_IS_UP = "time is up"


class WriterAdapter(TinyAdapter):
    """Has the site of a metadata fault on prefill ranks, an address on decode ranks."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(rank=args.tp, size=args.size, count=0, group=None)
        self.args = args
        self.faults: FaultTable | None = None

    def identity(self) -> Identity:
        return msgspec.structs.replace(
            super().identity(),
            role=self.args.role,
            service=f"{self.args.role} {self.args.service}",
            instance=f"{self.args.role} {self.args.service}",
        )

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        self.faults = faults

    def seams(self) -> tuple[Seam, ...]:
        if self.args.role != "prefill":
            return ()
        return (Seam("fault.delay-metadata", not self.args.no_site, "WriterAdapter.write"),)

    def ordinals(self) -> dict[str, int]:
        return {}

    def transfer_address(self) -> str:
        return ADDRESS.format(tp=self.args.tp) if self.args.role == "decode" else ""


def write_rows(faults: FaultTable, log: int, every: float) -> None:
    room = 1000
    while True:
        room += 1
        for tp in (0, 1):

            def row(how: str, room: int = room, tp: int = tp) -> None:
                os.write(log, f"{room} {tp} {how}\n".encode())

            place = (tp, room)  # no slot is used twice: every row is wanted
            taken = (
                faults.offer(HELD_METADATA, room, tp=tp, address=ADDRESS.format(tp=tp), place=place)
                if faults.metadata
                else None
            )
            if taken is None or not faults.hold(taken, lambda row=row: row("late"), room=room, tp=tp, place=place):
                row("direct")
        time.sleep(every)


def end_thread(name: str) -> None:
    """Raise SystemExit in the thread called so, again where something swallows it, until it has ended."""
    [thread] = [thread for thread in threading.enumerate() if thread.name == name]
    while thread.is_alive():
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        thread.join(2.0)


def obey(faults: FaultTable) -> None:
    for line in sys.stdin:
        if line.strip() == TIME_IS_UP:
            for fault in faults.any:
                fault.expires = time.monotonic()
        else:
            end_thread(line.strip())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--role", default="prefill")
    parser.add_argument("--tp", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--service", default="a")
    parser.add_argument("--every", type=float, default=0.02)
    parser.add_argument("--no-site", action="store_true")
    args = parser.parse_args()
    adapter = WriterAdapter(args)
    agent = Agent.start(adapter, loaded_by="test")
    assert agent is not None
    if args.role == "prefill" and args.every:
        log = os.open(args.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        threading.Thread(target=write_rows, args=(agent.faults, log, args.every), daemon=True).start()
    threading.Thread(target=obey, args=(agent.faults,), daemon=True).start()
    print("ready", agent.start_line(), flush=True)
    time.sleep(1_000_000)


if __name__ == "__main__":
    main()
