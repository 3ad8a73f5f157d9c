"""Where cases run: what is there, and what it is called in their command lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdctl.recording.witness import SAME_S
from tests.golden.running import ROOT
from tests.support.labs import Lab, Labs, end_process
from tests.support.outside_targets import ranks
from tests.support.patience import until

TRACES = {
    "s1.pdtrace": ROOT / "docs/notebooks/s1.pdtrace",
    "real.pdtrace": ROOT / "tests/data/sglang-0.5.12.post1-c1.pdtrace",
    "old.pdtrace": ROOT / "tests/data/version-1.pdtrace",
}
JOURNALS = ROOT / "tests/golden/data"


@dataclass
class Place:
    """A world while it is there. words: what ``{NAME}`` in a command line stands for."""

    folder: Path
    env: dict[str, str]
    words: dict[str, str] = field(default_factory=dict)


@contextmanager
def fresh() -> Iterator[Place]:
    """A directory, a home and a run directory that nobody has used, and the stored files."""
    # Not a test's own folder: a socket's path has 107 bytes at most.
    top = Path(tempfile.mkdtemp(prefix="pdg-"))
    try:
        here = top / "here"
        for name in ("here", "home", "run", "rec", "here/empty", "here/mixed"):
            (top / name).mkdir(mode=0o700)
        for name, path in TRACES.items():
            shutil.copy(path, here / name)
        for name in ("s1.pdtrace", "real.pdtrace"):
            shutil.copy(TRACES[name], here / "mixed")
        (here / "cut.pdtrace").write_bytes(TRACES["s1.pdtrace"].read_bytes()[:5000])
        (here / "text.txt").write_text("no trace\n")
        (here / "bad.yaml").write_text("name: bad\nfault: {kind: nosuch}\n")
        for name in ("holds", "broken"):
            shutil.copy(JOURNALS / f"metadata-gate-{name}.jsonl", here / f"{name}.jsonl")
        for name in ("router.log", "decode.log"):
            shutil.copy(JOURNALS / name, here / name)
        lines = (here / "holds.jsonl").read_text().splitlines(keepends=True)
        (here / "cut.jsonl").write_text("".join(lines[: len(lines) // 2]))
        yield Place(here, environment(top))
    finally:
        shutil.rmtree(top, ignore_errors=True)


def environment(top: Path) -> dict[str, str]:
    """Return the environment of a command: nothing of the caller's but where programs are."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **kept,
        "HOME": str(top / "home"),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": str(ROOT),
        "PDCTL_RUN_DIR": str(top / "run"),
        "PDCTL_RECORD_DIR": str(top / "rec"),
        "XDG_STATE_HOME": str(top / "state"),
    }


# ---- live: a base is started once, and the worlds on it are reached one after the other ------------------------------


@dataclass
class Live(Place):
    """A place with a lab."""

    lab: Lab = None  # type: ignore[assignment]  # given at once


@contextmanager
def _lab(*options: str) -> Iterator[Live]:
    with fresh() as place, Labs() as labs:
        labs.env = dict(place.env)
        labs.folder = place.folder.parent
        lab = labs.up("--transport", "socket", *options)
        yield Live(place.folder, place.env, {"rec": "../rec"}, lab)


@contextmanager
def healthy() -> Iterator[Live]:
    """A prefill rank and two decode ranks that have served four requests."""
    # What waits is looked at for as long as the cases take, on a busy machine for longer than the usual 300 s.
    with _lab("--waiting-timeout", "1h", "--bootstrap-timeout", "1h") as place:
        assert place.lab.load(requests=4, room=4000, seed=1).good
        yield place


@contextmanager
def waiting(place: Live) -> Iterator[None]:
    """The same, and a request that only decode has, and a younger one that only prefill has."""

    def peers() -> dict[int, str]:
        patient = ("--pause", "100ms", "--rank-timeout", "60s", "--timeout", "60s")
        done = place.lab.labs.cli("stuck", "-o", "json", *patient, code=None)
        return {row["room"]: row["peer_is"] for row in json.loads(done.stdout)["requests"]}

    lab = place.lab
    until("recordings that go back before the requests", lambda: lab.recorded_s() > SAME_S)
    with lab.waiting(4100, "decode"):
        until("a room that never came to prefill", lambda: peers() == {4100: "never"})
        with lab.waiting(4200, "prefill"):
            until("one that never came to decode, too", lambda: peers() == {4100: "never", 4200: "never"})
            yield


@contextmanager
def stopped(place: Live) -> Iterator[None]:
    """The same without requests, and decode tp1 is stopped."""
    # What went before may leave requests that are just being aborted.
    lab = place.lab
    until("no request", lambda: not any(rooms for queues in lab.queues().values() for rooms in queues.values()))
    left = {rank: lab.recording(rank).ticks for rank in lab.queues()}
    until(
        "the end of the turn in which it left", lambda: all(lab.recording(rank).ticks > left[rank] + 1 for rank in left)
    )
    pid = lab.process("decode dp0 pp0 tp1").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(
            "a rank that has waited for it for long enough to be named",
            lambda: "For it waits" in lab.labs.cli("diff-queues", code=None).stdout,
        )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def hung() -> Iterator[Live]:
    """A lab without the gate, hung by metadata that came late on decode tp1."""
    with _lab("--without", "gate") as place:
        lab = place.lab
        lab.inject_late_metadata(delay="2s")
        lab.load(requests=1, room=5000, seed=1, seconds=4)
        until(
            "a landing that only one rank has acted on",
            lambda: (
                lab.events("decode dp0 pp0 tp1", 13)
                and len({len(rooms["decode.transfer"]) for name, rooms in lab.queues().items() if "decode" in name}) > 1
            ),
        )
        lab.labs.cli("heal", "--all")  # else it is over in the middle of the cases
        until("loops that have stood for long enough", lambda: lab.labs.cli("ranks", code=None).returncode == 1)
        yield place


@contextmanager
def dead(place: Live) -> Iterator[None]:
    """The same after the end of all its processes."""
    for process in place.lab.processes:
        if process.alive:
            end_process(process)
    until(
        "the end of all processes of the lab, also as zombies",
        lambda: not any(Path(f"/proc/{process.pid}").exists() for process in place.lab.processes),
    )
    yield


@contextmanager
def outside() -> Iterator[Place]:
    """Two decode ranks whose queues differ and a prefill rank, none of them with an agent."""
    with fresh() as place, ranks(place.folder.parent / "home") as started:
        first = started.start("--size", 2, "--rooms", "12", "--landed", "12")
        started.start("--size", 2, "--tp", 1, "--rooms", "12,77", "--then", "gil", title="sglang::scheduler_TP1")
        started.start("--role", "prefill", "--rooms", "12", title="sglang::scheduler")
        env = {**place.env, "PDCTL_OUTSIDE": "all"}
        yield Place(place.folder, env, {"pid": str(first.pid), "other": str(os.getpid())})


@dataclass(frozen=True)
class World:
    """base: what is started. then: what is done to it for this world, and undone."""

    base: Callable[[], AbstractContextManager[Place]]
    then: Callable[[Any], AbstractContextManager[None]] | None = None


WORLDS: Mapping[str, World] = {
    "offline": World(fresh),
    "usage": World(fresh),
    "nobody": World(fresh),
    "healthy": World(healthy),
    "waiting": World(healthy, waiting),
    "stopped": World(healthy, stopped),
    "hung": World(hung),
    "dead": World(hung, dead),
    "outside": World(outside),
}

LIVE = ("healthy", "waiting", "stopped", "hung", "dead", "outside")
MOVING = ("healthy", "waiting", "stopped")
"""Live worlds with ranks that go on."""
