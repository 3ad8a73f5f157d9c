"""How judges and renderers grow with servers: what is asked of 512 and of 2,048 ranks, in groups of 8, judged and drawn.

    python -m benchmarks.many_servers [--ranks 512 2048] [--requests 20]

Every server has 8 groups, every group its own requests, all of it well. A line of JSON for each judge and number of ranks:
milliseconds of CPU to judge and to draw at 80 columns, and the lines that are drawn. What compares all with all grows
sixteenfold from one number to the next, and what does not fourfold.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from benchmarks.judges import COVERS, slots
from pdctl.cli import collect_garbage_seldom
from pdctl.probes.config.judge import judge as judge_config
from pdctl.probes.config.model import RankSettings
from pdctl.probes.leaks.judge import judge as judge_leaks
from pdctl.probes.leaks.model import RankWatch, look
from pdctl.probes.metadata.judge import judge as judge_metadata
from pdctl.probes.metadata.model import History, RankRows
from pdctl.probes.queues.judge import judge as judge_queues
from pdctl.probes.queues.model import RankView as QueueView
from pdctl.probes.registry import PROBES
from pdctl.probes.routing.judge import judge as judge_routing
from pdctl.probes.routing.model import Look, RankView, ServerView
from pdctl.probes.stuck.judge import judge as judge_stuck
from pdctl.probes.stuck.model import RankLooks
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import Identity, QueueEntry, Snapshot
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import RoomEntry, Rooms, RoomTable, Settings, Space
from pdctl.report.causes import connect
from pdctl.report.findings import finding
from pdctl.report.output import Output
from pdctl.watch import merging
from pdctl.watch.checking import Checked
from tests.support.drawing import drawing
from tests.support.many import identities

GROUP, GROUPS = 8, 8


def entries(one: Identity, requests: int) -> list[RoomEntry]:
    """Return the requests of a rank: those of its group, of which each server has its own."""
    queue = "decode.transfer" if one.role == "decode" else "prefill.inflight"
    first = int(one.host.removeprefix("node")) * 10**6 + one.dp * 10**4 + 1
    return [
        RoomEntry(queue, first + n, f"request-{first + n}", n, 2, 12.0, 12.0, 2048, 2048, 0, "10.0.0.0:8998")
        for n in range(requests)
    ]


def judged(among: Sequence[Identity], requests: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each judge, and a call of it."""
    held = [entries(one, requests) for one in among]
    rooms = [Rooms(1, 1, RoomTable.of(those), COVERS, Space(), {}, {}, {}) for those in held]
    again = [Rooms(1, 1, RoomTable.of(those), COVERS, Space(), {}, {}, {}) for those in held]
    looks = [
        RankLooks(one, "live", first=first, second=second, recorded=True)
        for one, first, second in zip(among, rooms, again, strict=True)
    ]
    yield "stuck", lambda: judge_stuck(looks, pause_s=2.0)
    settings = Settings({"dp_size": str(GROUPS), "load_balance_method": "follow_bootstrap_room"}, {})
    views = tuple(RankView(one, "live", rooms=of, settings=settings) for one, of in zip(among, rooms, strict=True))
    server = ServerView(
        "10.0.0.0:8998",
        info={"dp_size": str(GROUPS), "follow_bootstrap_room": "True"},
        asked=frozenset(entry.room for those in held for entry in those),
    )
    yield "verify-routing", lambda: judge_routing(Look(views, {("", server.address): server}))
    body = msgspec.msgpack.decode(slots(requests), type=Metadata)
    rows = [RankRows(one, "live", body=body, history=History(whole=True)) for one in among]
    yield "dump metadata", lambda: judge_metadata(rows, now_s=1.0, every=False)
    watches = [
        RankWatch(one, "live", "", tuple(replace(look(of, body), ticks=5 * n, mono_ns=n * 10**9) for n in range(3)))
        for one, of in zip(among, rooms, strict=True)
    ]
    yield "dump leaks", lambda: judge_leaks(watches, watch_s=4.0)
    said = {f"argument_{n}": str(n) for n in range(100)}
    yield "dump config", lambda: judge_config([RankSettings(one, "live", body=Settings(said, {})) for one in among])
    lists = [
        QueueView(one, "live", snapshot=Snapshot(1, 1, {of[0].queue: [QueueEntry(e.room, e.rid) for e in of]}, [], {}))
        for one, of in zip(among, held, strict=True)
    ]
    yield "diff-queues", lambda: judge_queues(lists)
    document = judge_queues(lists)
    found = tuple(finding("PD110", "Waits.", group=one.title, units=("decode dp0 of x",)) for one in document.groups)
    seen = merging.Look(
        1.0,
        tuple(FoundRank(one, "live") for one in among),
        tuple(Answer(FoundRank(one, "live")) for one in among),
        tuple(lists),
        msgspec.structs.replace(document, findings=found),
    )
    yield "watch", lambda: merging.merged(seen, merging.Look(), Checked(views=tuple(lists)), None)
    waits = [finding("PD141", "Waits.", rooms=(n,), units=(one.unit,)) for n, one in enumerate(among)]
    parted = [finding("PD101", "Parted.", units=(one.unit,)) for one in among if not one.tp]
    yield "findings", lambda: connect((*waits, *parted))


def drawn(command: str, document: Any) -> tuple[float, int]:
    """Return (milliseconds of CPU, lines) of drawing a document as its command does."""
    probe = next((entry for entry in PROBES if entry.command == command), None)
    if probe is None:
        return 0.0, 0
    started = time.process_time()
    text = Output(out=io.StringIO(), env={"COLUMNS": "80"}).drawn(document, drawing(probe.load()))
    return (time.process_time() - started) * 1000, text.count("\n")


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args(arguments)
    collect_garbage_seldom()
    for ranks in options.ranks:
        among = identities(max(2, ranks // (GROUP * GROUPS)), GROUPS, GROUP)
        for name, judge in judged(among, options.requests):
            started = time.process_time()
            document = judge()
            judge_ms = (time.process_time() - started) * 1000
            draw_ms, lines = drawn(name, document)
            line = {
                "benchmark": "many_servers", "judge": name, "ranks": len(among), "judge_ms": round(judge_ms, 1),
                "draw_ms": round(draw_ms, 1), "lines": lines,
            }  # fmt: skip
            print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
