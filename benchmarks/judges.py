"""What judging takes: every probe's pure judge on synthetic snapshots, decoded as they come from the ranks.

    python -m benchmarks.judges [--ranks 64] [--requests 10000]

Ranks are a decode group of that size, every rank with the same requests, as the engine has it (one room differs on one
rank), and a prefill rank that has them, too. A line of JSON each: milliseconds of CPU to decode the answers and to
judge, and the growth of the process in MiB; of ``leaks``, to condense one look of every rank instead of to decode it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pdctl.cli import collect_garbage_seldom
from pdctl.probes.leaks.judge import judge as judge_leaks
from pdctl.probes.leaks.model import RankWatch, look
from pdctl.probes.metadata.judge import judge as judge_metadata
from pdctl.probes.metadata.model import History, RankRows
from pdctl.probes.routing.judge import judge as judge_routing
from pdctl.probes.routing.model import Look, RankView, ServerView
from pdctl.probes.stuck.judge import judge as judge_stuck
from pdctl.probes.stuck.model import RankLooks
from pdctl.protocol.metadata import Holder, Metadata, SlotRow
from pdctl.protocol.model import Identity, KVPoll
from pdctl.protocol.requests import Cover, RoomEntry, Rooms, RoomTable, Settings, Space

BASE = Identity(
    engine="bench", engine_version="0", pdctl_version="0", role="decode", host="h", pid=1, proc_start=1,
    started_wall_ns=1, started_mono_ns=1, instance="i", service="decode", cluster="", world="w", world_rank=0,
)  # fmt: skip
COVERS = (Cover("decode.transfer", KVPoll.WAITING_FOR_INPUT, 300.0, "WAITING"),)


def answer(requests: int, *, without: int = -1, queue: str = "decode.transfer") -> bytes:
    """Return a rank's answer to ``rooms`` with so many requests, as it comes over the wire."""
    rooms = [
        RoomEntry(queue, (1 << 62) + room, f"request-{room:08d}", room, 2, 12.0, 12.0, 2048, 2048, 0, "10.0.0.1:8998")
        for room in range(requests)
        if room != without
    ]
    return msgspec.msgpack.encode(
        Rooms(1, 1, RoomTable.of(rooms), COVERS, Space(), {"request_status": [r.room for r in rooms]}, {}, {})
    )


def slots(requests: int, *, wrong: bool = False) -> bytes:
    """Return a rank's answer to ``metadata``: a slot for each request, a third not written yet."""
    rooms = [(1 << 62) + room for room in range(requests)]
    held = [Holder(room, f"request-{n:08d}", n, "decode.transfer", 3) for n, room in enumerate(rooms)]
    rows = [SlotRow(n, room if n % 3 else 0, 5.0, 7 + n) for n, room in enumerate(rooms)]
    if wrong:
        rows[7] = SlotRow(7, 99, 5.0, 14)
    return msgspec.msgpack.encode(Metadata(1, 1, "cpu", (), "rdma", "", True, True, requests, held, rows))


def timed(what: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Return (median milliseconds of CPU, the last result)."""
    spent = []
    result = None
    for _ in range(times):
        result = None
        started = time.process_time()
        result = what()
        spent.append((time.process_time() - started) * 1000)
    return statistics.median(spent), result


def rss_mib() -> float:
    """Return the largest the process has been, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(
    probe: str,
    options: argparse.Namespace,
    decode_ms: float,
    judge_ms: float,
    mib: float,
    rows: int,
    found: Sequence[Any],
) -> None:
    """Print one line."""
    line = {
        "benchmark": "judge", "probe": probe, "ranks": options.ranks, "requests": options.requests,
        "decode_ms": round(decode_ms, 1), "judge_ms": round(judge_ms, 1), "rss_added_mib": round(mib, 1), "rows": rows,
        "findings": len(found),
    }  # fmt: skip
    print(json.dumps(line))


def rows_and_leaks(options: argparse.Namespace, looks: list[RankLooks]) -> None:
    """Print the lines of ``metadata``, as ``check`` judges it, and of ``leaks`` with five looks."""
    raw = [slots(options.requests, wrong=rank == 1) for rank in range(options.ranks - 1)]
    before = rss_mib()
    decode_ms, bodies = timed(lambda: [msgspec.msgpack.decode(data, type=Metadata) for data in raw], options.times)
    past = History(whole=True)
    views = [
        RankRows(v.identity, "live", body=b, again=b if n == 1 else None, history=past)
        for n, (v, b) in enumerate(zip(looks, bodies, strict=False))
    ]
    judge_ms, document = timed(lambda: judge_metadata(views, now_s=1.0, every=False), options.times)
    report("metadata", options, decode_ms, judge_ms, rss_mib() - before, len(document.slots), document.findings)
    before = rss_mib()
    watches: list[RankWatch] = []
    known: dict[frozenset[int], frozenset[int]] = {}
    started = time.process_time()
    for seen, body in zip(looks, bodies, strict=False):
        assert seen.second is not None
        one = look(seen.second, body)
        rooms = known.setdefault(one.rooms, one.rooms)
        several = tuple(replace(one, rooms=rooms, ticks=5 * n, mono_ns=n * 10**9) for n in range(5))
        watches.append(RankWatch(seen.identity, "live", "", several))
    condense_ms = (time.process_time() - started) * 1000
    judge_ms, leaks = timed(lambda: judge_leaks(watches, watch_s=4.0), options.times)
    report("leaks", options, condense_ms, judge_ms, rss_mib() - before, len(leaks.ranks), leaks.findings)


def routes(options: argparse.Namespace, decode_ms: float, looks: list[RankLooks]) -> None:
    """Print the line of ``routing``: the same answers, and a bootstrap server that was asked for every room."""
    before = rss_mib()
    settings = Settings({"dp_size": "1", "load_balance_method": "follow_bootstrap_room"}, {})
    views = [RankView(seen.identity, "live", rooms=seen.first, settings=settings) for seen in looks]
    rooms = frozenset(entry.room for seen in looks if seen.first is not None for entry in seen.first.rooms)
    server = ServerView("10.0.0.1:8998", info={"dp_size": "1", "follow_bootstrap_room": "True"}, asked=rooms)
    whole = Look(tuple(views), {("", server.address): server})
    judge_ms, document = timed(lambda: judge_routing(whole), options.times)
    report("routing", options, decode_ms, judge_ms, rss_mib() - before, len(document.rooms), document.findings)


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args(arguments)
    collect_garbage_seldom()
    raw = [answer(options.requests, without=7 if rank == 1 else -1) for rank in range(options.ranks - 1)]
    raw.append(answer(options.requests, queue="prefill.inflight"))
    before = rss_mib()
    decode_ms, answers = timed(lambda: [msgspec.msgpack.decode(data, type=Rooms) for data in raw], options.times)
    looks = []
    for rank, rooms in enumerate(answers):
        prefill = rank == options.ranks - 1
        identity = msgspec.structs.replace(
            BASE, role="prefill" if prefill else "decode", service="p" if prefill else "d",
            tp=0 if prefill else rank, tp_size=1 if prefill else options.ranks - 1,
        )  # fmt: skip
        again = msgspec.msgpack.decode(raw[rank], type=Rooms)  # the other look is another answer
        looks.append(RankLooks(identity, "live", first=again, second=rooms, recorded=True))
    judge_ms, document = timed(lambda: judge_stuck(looks, pause_s=2.0), options.times)
    report("stuck", options, decode_ms, judge_ms, rss_mib() - before, len(document.requests), document.findings)
    routes(options, decode_ms, looks)
    rows_and_leaks(options, looks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
