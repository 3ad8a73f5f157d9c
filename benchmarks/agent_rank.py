"""A process as a rank is, for measuring what an agent adds to it; one JSON line is its result.

    python -m benchmarks.agent_rank memory|idle|snapshot [--agent] [--seconds 20] [--requests 1000]

The scheduler's objects are synthetic, their shape is SGLang's, and the agent reads them with its SGLang queue reader.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROUNDS_A_MINUTE = 60 * 1000
"""Rounds of one minute at a thousand turns a second."""


def scheduler(count: int) -> Any:
    """Return a decode scheduler whose transfer queue has ``count`` requests."""
    import torch

    entries = [
        SimpleNamespace(
            req=SimpleNamespace(
                bootstrap_room=2**60 + n,
                rid=f"{n:032x}",
                time_stats=SimpleNamespace(decode_transfer_queue_entry_time=time.perf_counter()),
            ),
            kv_receiver=SimpleNamespace(),
            metadata_buffer_index=n,
        )
        for n in range(count)
    ]
    manager = SimpleNamespace(request_status={entry.req.bootstrap_room: 3 for entry in entries})
    return SimpleNamespace(
        disagg_decode_prealloc_queue=SimpleNamespace(queue=[], pending_reqs=[], retracted_queue=[], kv_manager=manager),
        disagg_decode_transfer_queue=SimpleNamespace(queue=entries),
        disagg_metadata_buffers=SimpleNamespace(bootstrap_room=torch.zeros((count + 1, 8), dtype=torch.int64)),
        waiting_queue=[],
    )


def adapter(engine: Any) -> Any:
    """Return an adapter over that scheduler: the queues as SGLang's adapter reads them, one tap."""
    from benchmarks.synthetic import rank_identity
    from pdctl.agent.tap import QueueTap
    from pdctl.engines.base import Hooks
    from pdctl.engines.sglang.queues import QueueReader

    class Bench:
        def __init__(self) -> None:
            self.hooks = Hooks()
            self.reader = QueueReader(engine, "decode")
            self.tap: Any = None

        def identity(self) -> Any:
            return rank_identity()

        def install(self, recorder: Any, faults: Any) -> None:  # noqa: ARG002
            self.tap = QueueTap("decode.transfer", self.reader, recorder, lambda: 0)

        def seams(self) -> tuple[Any, ...]:
            return tuple(self.reader.seams())

        def threads(self) -> tuple[Any, ...]:
            return ()

        def ticks(self) -> tuple[int, int]:
            return self.tap.visits, 0

        def ordinals(self) -> dict[str, int]:
            return {"decode.transfer/attn-tp": self.tap.ordinals().get(0, -1)}

        def queues(self) -> Any:
            return self.reader.read()

        def slots(self) -> Any:
            return self.reader.slots()

        def step_of(self, stack: Any) -> str:  # noqa: ARG002
            return ""

        def group_kind(self, group: Any) -> str:  # noqa: ARG002
            return ""

    return Bench()


def _memory() -> dict[str, float]:
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = round(int(rest.split()[0]) / 1024, 2)
    return {name.lower(): fields[name] for name in ("Rss", "Pss", "Private_Dirty")}


def _rounds(tap: Any, entries: list[Any], count: int) -> None:
    """A minute of a busy queue: a state changes in one turn of ten, a request leaves and another comes in one of fifty."""
    pollers = [object() for _ in entries]
    states = bytearray([3] * len(entries))
    for number in range(count):
        if number % 10 == 0:
            states[number // 10 % len(states)] ^= 1
        if number % 50 == 0:
            pollers = [*pollers[1:], object()]
            entries = [*entries[1:], entries[0]]
        data = bytes(states)
        tap.visit(entries)
        tap.polled(pollers)
        tap.entering(0, data, 1)
        tap.left(0, data, 1)
        tap.leave(entries)


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Return RSS and PSS in MiB after a minute's worth of rounds (with an agent), and what the rings got."""
    import msgspec
    import numpy
    import torch
    import zmq

    # What an engine has loaded anyway is loaded and used: a context, an array, a decoder.
    zmq.Context.instance().socket(zmq.PUSH).close()
    torch.zeros(1000).numpy().astype(numpy.int64)
    msgspec.json.decode(b"[1]")
    engine = scheduler(64)
    before = _memory()
    if options.agent:
        from pdctl.agent.core import Agent

        agent = Agent.start(adapter(engine))
        assert agent is not None
        assert agent.server is not None, agent.registration.endpoint_off
        assert agent.registration.recording, agent.registration.recording_off
        _rounds(agent.adapter.tap, engine.disagg_decode_transfer_queue.queue, ROUNDS_A_MINUTE)
    return {**_memory(), "before": before}


def idle(options: argparse.Namespace) -> dict[str, Any]:
    """Return the share of a core that the process takes while its main thread sleeps."""
    from pdctl.agent.core import Agent

    engine = scheduler(16)
    agent = Agent.start(adapter(engine)) if options.agent else None
    assert agent is None or agent.server is not None
    time.sleep(1)
    start, wall = time.process_time(), time.monotonic()
    time.sleep(options.seconds)
    seconds = time.monotonic() - wall
    return {"share": round((time.process_time() - start) / seconds, 6), "seconds": round(seconds, 1)}


class _Parts:
    """Stands for the module ``time`` in the queue reader, and notes each stretch of CPU time between two pauses."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._last = time.thread_time()
        self._stretches: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.longest_ms()
        time.sleep(seconds)
        self._last = time.thread_time()

    def longest_ms(self) -> float:
        """End a stretch; return the longest so far."""
        self._stretches.append(time.thread_time() - self._last)
        return max(self._stretches) * 1e3


def snapshot(options: argparse.Namespace) -> dict[str, Any]:
    """Return what ``queues`` costs, in ms.

    build: CPU time of a whole answer. stretch: its longest part between two moments in which the agent's thread lets go of
    the GIL. gap: the longest time in which a spinning main thread did not get on, with a question and without.
    """
    import msgspec

    from benchmarks.statistics import quartiles
    from pdctl.agent.core import Agent
    from pdctl.engines.sglang import queues as queue_reader
    from pdctl.protocol import wire
    from pdctl.protocol.model import Snapshot
    from pdctl.protocol.stream import Connection

    engine = scheduler(options.requests)
    agent = Agent.start(adapter(engine))
    assert agent is not None
    assert agent.server is not None
    built, stretches = [], []
    for _ in range(200):
        parts = _Parts()
        queue_reader.time = parts  # type: ignore[assignment]
        start = time.thread_time()
        queues, missing = agent.adapter.queues()
        wire.encode(wire.Reply(body=msgspec.Raw(wire.encode(Snapshot(0, 0, queues, agent.adapter.slots(), missing)))))
        built.append((time.thread_time() - start) * 1e3)
        stretches.append(parts.longest_ms())
    queue_reader.time = time

    replies: list[int] = []
    asked = threading.Event()
    stop = threading.Event()

    def ask() -> None:
        connection = Connection(agent.registration.endpoint.removeprefix("ipc://"))
        while not stop.is_set():
            asked.wait()
            asked.clear()
            if not stop.is_set():
                body = wire.decode_reply(connection.ask(wire.encode(wire.Request("queues")), 60)).body
                replies.append(len(msgspec.msgpack.decode(body)["queues"]["decode.transfer"]))
        connection.close()

    asker = threading.Thread(target=ask)
    asker.start()

    def longest(seconds: float) -> float:
        """The longest time in ms that the main thread, spinning, did not get on."""
        end = last = time.perf_counter()
        end += seconds
        gap = 0.0
        while last < end:
            now = time.perf_counter()
            gap = max(gap, now - last)
            last = now
        return gap * 1e3

    sys.setswitchinterval(1e-4)  # the spinning thread itself must not keep the others waiting
    quiet, busy = [], []
    for _ in range(100):
        quiet.append(longest(0.05))
        asked.set()
        busy.append(longest(0.05))
    stop.set()
    asked.set()
    asker.join(10)
    assert replies, "no snapshot came"
    assert set(replies) == {options.requests}
    return {
        "build_ms": quartiles(built),
        "stretch_ms": quartiles(stretches),
        "gap_ms": quartiles(busy),
        "gap_without_ms": quartiles(quiet),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "idle", "snapshot"))
    parser.add_argument("--agent", action="store_true")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PDCTL_RUN_DIR=f"{folder}/run", PDCTL_RECORD_DIR=f"{folder}/record")
        result = {"memory": memory, "idle": idle, "snapshot": snapshot}[options.what](options)
        print(json.dumps(result), flush=True)
        core = sys.modules.get("pdctl.agent.core")
        if core is not None and core.Agent.current is not None:
            core.Agent.current.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
