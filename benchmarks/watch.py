"""What a look of ``watch`` at the recordings of many ranks takes, in turn with reading and judging them whole.

    python -m benchmarks.watch [--ranks 16] [--runs 20] [--new 50]

The ranks are groups of two with full recordings of 16 MiB. Before each look each of them writes ``--new`` runs more, as a queue
does that changes a hundred times a second. One JSON line; milliseconds of CPU time, the ratio to the whole reading,
and the share of a core of two looks a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from benchmarks.load_trace import ITEMS, ROOM
from benchmarks.statistics import quartiles
from benchmarks.synthetic import rank_identity
from pdctl.probes.queues.judge import judge
from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.protocol.model import GroupInfo, Identity
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, read
from pdctl.recording.tail import Tail
from pdctl.recording.writer import RecordingWriter

EVERY_S = 0.5


class Rank:
    """A rank that writes runs, each of which differs from the one before."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path, self.identity = path, identity
        self.writer = RecordingWriter.create(path, msgspec.json.encode(identity), size=f.DEFAULT_SIZE)
        self.number = 0
        self.turns(f.layout(f.DEFAULT_SIZE)[1] + 100)

    def turns(self, many: int) -> None:
        """Write so many runs."""
        for number in range(self.number, self.number + many):
            room = ROOM + number
            data = b"".join(f.ITEM.pack(room + n, room + n, n, n, 4, 4, 4, int(n == 0), 1) for n in range(ITEMS))
            start, when = self.writer.items(data), number * 100_000
            head = (0, 4, 0, 3 | (f.FLAG_FULL << 4 if number % 64 == 0 else 0), 1, when, when + 50_000)
            tail = f.ROUND_TAIL.pack(ITEMS, ITEMS - 1, number, number, when, room, room, start, ITEMS, crc32(data))
            self.writer.close_run(head, tail)
        self.number += many


def identities(ranks: int) -> list[Identity]:
    """Return decode ranks in groups of two."""
    return [
        rank_identity(
            n % 2, dp=n // 2, dp_size=ranks // 2, world_rank=n, groups=(GroupInfo("attn-tp", (n & ~1, n | 1), "bench"),)
        )
        for n in range(ranks)
    ]


def judged(ranks: Sequence[Rank], recordings: Sequence[Recording], *, holds: bool = False) -> QueuesDocument:
    """Return what a look makes of them. holds: as ``diff-queues`` does."""
    views = [
        RankView(rank.identity, "live", recording=one, now_ns=rank.number * 100_000)
        for rank, one in zip(ranks, recordings, strict=True)
    ]
    return judge(views, stalled_s=float("inf"), confirmed=False, holds=holds)


def cpu_ms(what: Callable[[], QueuesDocument]) -> float:
    """Return the milliseconds of CPU time that a look takes. All groups agree."""
    before = time.process_time()
    document = what()
    took = (time.process_time() - before) * 1e3
    assert {group.verdict for group in document.groups} == {"AGREE"}
    return took


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--new", type=int, default=50)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp())
    try:
        ranks = [Rank(folder / f"{n}.pdrec", one) for n, one in enumerate(identities(given.ranks))]
        tails = []
        for rank in ranks:
            first = read(rank.path)
            tails.append(Tail(rank.path, first.pid, first.proc_start))
        judged(ranks, [tail.read() for tail in tails])
        look, whole = [], []
        for _ in range(given.runs):
            for rank in ranks:
                rank.turns(given.new)
            look.append(cpu_ms(lambda: judged(ranks, [tail.read() for tail in tails])))
            whole.append(cpu_ms(lambda: judged(ranks, [read(rank.path) for rank in ranks], holds=True)))
    finally:
        shutil.rmtree(folder)
    print(
        json.dumps(
            {
                "benchmark": "watch",
                "ranks": given.ranks,
                "new": given.new,
                "look_ms": quartiles(look),
                "whole_ms": quartiles(whole),
                "ratio": quartiles([a / b for a, b in zip(look, whole, strict=True)]),
                "share_of_a_core": round(sorted(look)[len(look) // 2] / 1e3 / EVERY_S, 4),
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
