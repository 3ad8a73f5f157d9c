"""How long after the first round that differs ``pdctl watch`` tells it, and its cause; and what it tells of labs that are well.

    python -m benchmarks.watch_latency [--times 200] [--hours 0]

One watch runs all the time, while labs come and go beside it. In each of ``--times`` of them ranks are made to part, in one of
the ways of KINDS after the other. A JSON line for each, then one a kind: how many were told, and the seconds from the first
round that differs to the alarm and to the line with its cause (median, 90th percentile, most). Then ``--hours`` of a lab with a
busy load and one with a light load: alarms, which there must not be, and memory and descriptors before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.labs import Lab, Labs
from tests.support.patience import until

BOTH = ("--rank", "decode:tp0", "--rank", "decode:tp1")
TP1 = ("--rank", "decode:tp1", "--for", "10m", "--detach")


@dataclass(frozen=True)
class Kind:
    """A way to part ranks. up: options of the lab. part: does it. alarm, cause: codes of the first line, and of the last."""

    name: str
    up: tuple[str, ...]
    part: Callable[[Labs, Lab], None]
    alarms: tuple[str, ...]
    cause: str


SENT: list[float] = []
"""When requests were sent that do not complete."""


def send(labs: Labs, room: int, *options: object) -> None:
    """Send one request, which does not complete."""
    SENT.append(time.time())
    labs.cli("lab", "load", "-n", 1, "--room", room, "--seconds", 2, *options, code=None)


def late(labs: Labs, lab: Lab) -> None:
    """Metadata comes late to one rank, and there is no gate."""
    lab.inject_late_metadata()
    send(labs, 71)


def lost(labs: Labs, lab: Lab) -> None:
    """One rank does not get a request, so its list is empty."""
    lab.load(requests=4)
    send(labs, 73, "--to", "decode", "--lost-on", 0)


def fewer(labs: Labs, lab: Lab) -> None:
    """One rank has one request less than the other."""
    lab.load(requests=4)
    with contextlib.ExitStack() as held:
        held.enter_context(background(labs, "lab", "load", "-n", 1, "--room", 74, "--to", "decode", "--seconds", 8))
        until("the first one", lambda: lab.queues()["decode dp0 pp0 tp1"]["decode.transfer"] == [74])
        send(labs, 75, "--to", "decode", "--lost-on", 1)


def asks_early(labs: Labs, lab: Lab) -> None:  # noqa: ARG001
    """One rank does not find a request's prefill dp rank, the other does."""
    labs.cli("inject", "--hide-registration", "--rank", "decode:tp0", "--room", 6, "--for", "10m", "--detach")
    send(labs, 6, "--prefill-dp", 0)


def stale(labs: Labs, lab: Lab) -> None:  # noqa: ARG001
    """A slot of one rank still has its last owner's room when the next one's transfer is done."""
    labs.cli("lab", "load", "-n", 1, "--room", 100)
    labs.cli("inject", "--delay-metadata", "5s", "--room", 102, *TP1)
    send(labs, 102)


def stages(labs: Labs, lab: Lab) -> None:
    """A later stage of decode has no metadata, and keeps what the first one lets go."""
    lab.load(requests=8, concurrency=4)
    labs.cli("inject", "--delay-metadata", "10m", "--rank", "decode:pp1", "--for", "10m", "--detach")
    send(labs, 7)


def aborted(labs: Labs, lab: Lab) -> None:
    """An abort reaches one stage of prefill only."""
    lab.load(requests=4)
    labs.cli("inject", "--abort", "--rank", "prefill:pp1", "--hits", 1, "--for", "10m", "--detach")
    with background(labs, "lab", "load", "-n", 1, "--room", 7, "--seed", 1, "--to", "decode", "--seconds", 10):
        until("decode's addresses", lambda: lab.queues()["decode dp0 pp0 tp0"]["decode.transfer"] == [7])
        send(labs, 7, "--seed", 1, "--to", "prefill")


@contextlib.contextmanager
def background(labs: Labs, *words: object) -> Iterator[None]:
    """Have a command go on meanwhile, and wait for its end."""
    process = labs.start(*words)
    try:
        yield
    finally:
        process.communicate()


PP = ("--prefill", "pp=2", "--decode", "pp=2")
KINDS = (
    Kind("late metadata", ("--without", "gate"), late, ("PD101",), "PD101"),
    Kind("skipped collective", (), lost, ("PD103",), "PD103"),
    Kind("other lists", (), fewer, ("PD104",), "PD104"),
    Kind(
        "asked early", ("--prefill", "dp=2", "--force-query", "prefill,decode", "--without", "receiver"), asks_early,
        ("PD106", "PD103", "PD104"), "PD106",
    ),
    Kind("stale slot", ("--without", "zero-on-free", "--slots", "1"), stale, ("PD107", "PD131"), "PD131"),
    Kind("decode stages", PP, stages, ("PD115",), "PD115"),
    Kind("prefill stages", ("--prefill", "pp=2", "--decode", "tp=1"), aborted, ("PD115",), "PD115"),
)  # fmt: skip


class Watched:
    """The watch, each line that it has said and when that was read."""

    def __init__(self, labs: Labs) -> None:
        command = [sys.executable, "-m", "pdctl.cli", "watch", "-o", "jsonl"]
        self.process = subprocess.Popen(command, env=labs.env, stdout=subprocess.PIPE, text=True)
        self.lines: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.time(), json.loads(line)))

    def told(self, since: int = 0) -> list[tuple[float, dict[str, Any]]]:
        """Return the alarms and causes after so many lines."""
        return [one for one in self.lines[since:] if one[1]["change"] in ("began", "cause")]

    @property
    def size(self) -> dict[str, int]:
        """Its memory in KiB, and its descriptors."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [rss] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
        return {"rss_kib": rss, "descriptors": len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))}


def parted(labs: Labs, watched: Watched, kind: Kind) -> dict[str, Any]:
    """Part the ranks of a lab of its own, and return when that was told."""
    lab = labs.up(*kind.up)
    try:
        time.sleep(2.0)  # it is seen, and well
        since = len(watched.lines)
        kind.part(labs, lab)
        end = time.monotonic() + 60
        while time.monotonic() < end and not any(one["code"] == kind.cause for _, one in watched.told(since)):
            time.sleep(0.05)
        told = watched.told(since)
    finally:
        labs.cli("lab", "down", code=None)
    alarm = next(((at, one) for at, one in told if one["code"] in kind.alarms), None)
    cause = next(((at, one) for at, one in told if one["code"] == kind.cause), None)
    known = alarm is not None and alarm[1]["age_s"] is not None
    # Of stages the round is not always known at the alarm: from the request on, that is longer.
    began = alarm[1]["at_wall_ns"] / 1e9 - alarm[1]["age_s"] if alarm and known else SENT[-1]
    return {
        "benchmark": "watch_latency",
        "kind": kind.name,
        "since": "round" if known else "request",
        "alarm_s": round(alarm[0] - began, 3) if alarm else None,
        "cause_s": round(cause[0] - began, 3) if cause else None,
        "told": [f"{one['change']} {one['code']}" for _, one in told],
        "others": [one["summary"] for _, one in told if one["code"] not in (*kind.alarms, kind.cause)],
    }


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many were told, and how late."""

    def spread(key: str) -> list[float]:
        values = sorted(row[key] for row in rows if row[key] is not None)
        return (
            [values[len(values) // 2], values[min(len(values) - 1, len(values) * 9 // 10)], values[-1]]
            if values
            else []
        )

    return {
        "benchmark": "watch_latency",
        "of": name,
        "injected": len(rows),
        "alarms": sum(row["alarm_s"] is not None for row in rows),
        "causes": sum(row["cause_s"] is not None for row in rows),
        "alarm_s": spread("alarm_s"),
        "cause_s": spread("cause_s"),
    }


def quiet(labs: Labs, watched: Watched, hours: float) -> dict[str, Any]:
    """Watch two labs that are well, one of them busy; return what was told."""
    labs.up(name="busy")
    labs.up(name="light")
    since, end = len(watched.lines), time.monotonic() + 3600 * hours
    begun, sent = watched.size, 0
    while time.monotonic() < end:
        left = min(600.0, end - time.monotonic())
        with background(labs, "lab", "load", "--name", "busy", "-n", 0, "-c", 8, "--seconds", f"{left:.0f}"):
            labs.cli(
                "lab",
                "load",
                "--name",
                "light",
                "-n",
                max(1, int(left)),
                "-c",
                1,
                "--seconds",
                f"{left:.0f}",
                code=None,
            )
        sent += 1
    told = [one["code"] for _, one in watched.told(since)]
    return {"benchmark": "watch_quiet", "hours": hours, "alarms": told, "before": begun, "after": watched.size}


def main(arguments: list[str] | None = None) -> int:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS])
    given = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if not given.kind or kind.name in given.kind]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    with Labs() as labs:
        watched = Watched(labs)
        try:
            rows: dict[str, list[dict[str, Any]]] = {}
            for number in range(given.times):
                row = parted(labs, watched, kinds[number % len(kinds)])
                rows.setdefault(row["kind"], []).append(row)
                print(json.dumps(row), flush=True)
            for name, those in rows.items():
                print(json.dumps(summary(name, those)), flush=True)
            print(json.dumps(summary("all", [row for those in rows.values() for row in those])), flush=True)
            if given.hours:
                print(json.dumps(quiet(labs, watched, given.hours)), flush=True)
        finally:
            watched.process.terminate()
            watched.process.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
