"""A whole command over many ranks that are on other hosts: ``python -m benchmarks.fan_out --whole`` runs this.

Each rank is a process with a real agent, a full recording of 16 MiB and a gateway of its own, a process that listens over TCP
with CURVE; groups of eight. The command is a process too: ``pdctl diff-queues --endpoint … -o json``. All of it runs in a
network namespace of its own, where the machine lets it, so that the loopback interface counts this command's bytes alone, with
the headers of TCP and IP, in both directions.

What is not as it is in production: all gateways share the client's cores; they are forked from one process that has loaded
what a gateway loads (`numpy` too, 0.1 s of CPU that a real gateway needs once, at the first such question), which is what lets
hundreds of them fit into memory; the eight recordings of a group have the same bytes but for their headers; no rank has a loop:
it says that its loop turns, as that of a rank does which agrees with its group, and where a group has parted, that it stands
since it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  # for the gateways that are forked

from benchmarks.load_trace import full
from benchmarks.synthetic import rank_identity
from pdctl.agent import core
from pdctl.agent import gateway as gateways
from pdctl.gateway import process as program
from pdctl.gateway import service  # noqa: F401  # as above
from pdctl.protocol import keys
from pdctl.protocol.model import QUEUES, GroupInfo
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from tests.support.apart import loopback_up
from tests.system.targets.tiny import TinyAdapter

GROUP = 8
ODD = 20_000
"""The run in which the last rank of the first group has another request, where a group has diverged: half-way in the ring."""
_CLONE_NEWNET = 0x40000000
_START_S = 300.0
_TURN_NS = 100_000_000
_WAITS = ("--rank-timeout", "120", "--timeout", "120")


class Forked:
    """Stands for :class:`subprocess.Popen` of a gateway: it is forked, with its program loaded, and otherwise as started."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.returncode: int | None = None
        theirs, ours = os.pipe()
        said, says = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(theirs, 0)
            os.dup2(says, 1)
            os.dup2(says, 2)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.setsid()
            program.main()
            os._exit(0)
        os.close(theirs)
        os.close(says)
        self.stdin = os.fdopen(ours, "wb", 0)
        self.stdout = os.fdopen(said, "rb", 0)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> None:  # noqa: ARG002
        """Wait for its end."""
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def be_rank(number: int, ranks: int, template: Path, *, stands: bool = False) -> None:
    """Be one rank for ever: an agent, its gateway, and a recording as full as ``template``. stands: its loop does not turn."""
    gateways.subprocess.Popen = Forked  # type: ignore[assignment, misc]
    server, place = divmod(number, GROUP)
    size = min(GROUP, ranks - server * GROUP)
    adapter = TinyAdapter(place, size, 7, None)
    world = f"bench-{server}"
    who = rank_identity(
        place, tp_size=size, world=world, instance=world, service=f"decode {world}", host=f"host{server}",
        groups=(GroupInfo("attn-tp", tuple(range(size)), world),),
    )  # fmt: skip
    adapter.identity = lambda: who  # type: ignore[method-assign]
    began = time.monotonic_ns()

    def ticks() -> tuple[int, int]:
        last = began if stands else time.monotonic_ns()
        return last // _TURN_NS, last

    adapter.ticks = ticks  # type: ignore[method-assign]
    agent = core.Agent.start(adapter, loaded_by="benchmark", says=lambda _: None)
    assert agent is not None
    assert agent.registration.tcp, agent.start_line()
    recorder = agent.recorder
    assert isinstance(recorder, RecordingWriter), agent.start_line()
    with template.open("rb") as source, recorder.path.open("r+b") as copy:
        at = f.RINGS_OFFSET
        while at < recorder.size:
            at += os.copy_file_range(source.fileno(), copy.fileno(), recorder.size - at, at, at)
    words = recorder.visits(QUEUES.index("decode.transfer"))
    words[0], words[1] = f.layout(recorder.size)[1] + 100, time.monotonic_ns()
    recorder.pulse(words[0], words[1])
    Path(f"{recorder.path}.full").touch()
    while True:
        signal.pause()


@dataclass
class Ranks:
    """The ranks that run. folder: theirs. first: the pids of ranks, in their order."""

    folder: Path
    keyring: Path
    server_key: str
    pids: list[int] = field(default_factory=list)

    def grow(self, count: int, template: Path, *, odd: Path | None = None) -> None:
        """Start ranks until there are so many. odd: what the last rank of the first group has in place of ``template``."""
        env = {"PDCTL_RUN_DIR": f"{self.folder}/run", "PDCTL_RECORD_DIR": f"{self.folder}/rec"}
        os.environ.update(env, PDCTL_KEYS=str(self.keyring), PDCTL_LISTEN="tcp://127.0.0.1")
        while len(self.pids) < count:
            number = len(self.pids)
            pid = os.fork()
            if not pid:
                parted = odd is not None and number < GROUP
                be_rank(number, count, odd if odd and number == GROUP - 1 else template, stands=parted)
            self.pids.append(pid)
            if number % 16 == 15 or number == count - 1:  # not all of them at once
                self._wait(number + 1)

    def _wait(self, count: int) -> None:
        end = time.monotonic() + _START_S
        while len(list(self.folder.glob("rec/*.full"))) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{count} ranks did not start within {_START_S:.0f} s")
            time.sleep(0.1)

    def endpoints(self) -> list[str]:
        """Return where they listen, in their order."""
        found = {int(path.name.partition("-")[0]): path for path in self.folder.glob("run/*.json")}
        return [json.loads(found[pid].read_text())["tcp"] for pid in self.pids]

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU seconds so far of all ranks and of all gateways."""
        own = children = 0.0
        for pid in self.pids:
            own += _cpu_s(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                children += sum(map(_cpu_s, map(int, (task / "children").read_text().split())))
        return own, children

    def end(self) -> None:
        """End all of them. The gateways end with their ranks."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids.clear()


def _cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _wire() -> int | None:
    """Return the bytes that went over this network's loopback interface; None where that is the machine's own."""
    if not _apart:
        return None
    return int(Path("/proc/net/dev").read_text().partition("lo:")[2].split()[0])


_apart = False


def be_apart() -> None:
    """Go to a network of this process's own, where the machine lets it."""
    global _apart  # noqa: PLW0603  # a process has one network
    if ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0:
        loopback_up()
        _apart = True


def run(ranks: Ranks, command: str, *, old: bool = False) -> dict[str, Any]:
    """Run ``pdctl COMMAND`` on all ranks, and return what it took. old: as if their agents knew of whole recordings only."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PDCTL_")}
    env |= {
        "PDCTL_KEYS": str(ranks.keyring),
        "PDCTL_KEY": "bench",
        "PDCTL_SERVER_KEY": ranks.server_key,
        "XDG_CACHE_HOME": f"{ranks.folder}/cache",
    }
    env |= {"PDCTL_RUN_DIR": f"{ranks.folder}/none", "PDCTL_RECORD_DIR": f"{ranks.folder}/none"}
    endpoints = [word for endpoint in ranks.endpoints() for word in ("--endpoint", endpoint)]
    begin = ("-c", "from benchmarks.fan_out_whole import be_old; be_old()") if old else ("-m", "pdctl.cli")
    line = [sys.executable, *begin, *endpoints, command, "-o", "json", *_WAITS]
    bytes_before, cpu_before, begun = _wire(), ranks.cpu_s(), time.perf_counter()
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        out = client.stdout.read()
        _, status, used = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begun
    own, gates = (after - before for before, after in zip(cpu_before, ranks.cpu_s(), strict=True))
    wire = _wire()
    found = json.loads(out)
    count = len(ranks.pids)
    return {
        "benchmark": "fan_out_whole", "command": command, "way": "whole recordings" if old else "what is needed",
        "ranks": count, "exit": client.returncode, "wall_s": round(wall_s, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2), "peak_mib": round(used.ru_maxrss / 1024),
        "wire_kib_a_rank": None if wire is None or bytes_before is None else round((wire - bytes_before) / 1024 / count, 1),
        "gateway_cpu_ms_a_rank": round(gates * 1e3 / count, 2), "rank_cpu_ms_a_rank": round(own * 1e3 / count, 2),
        "verdicts": _verdicts(found), "problems": len(found.get("problems", ())),
        "findings": sorted({one["code"] for one in found.get("findings", ())}), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _verdicts(found: dict[str, Any]) -> dict[str, int]:
    verdicts = [group["verdict"] for group in found.get("groups", ())]
    return {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}


@contextlib.contextmanager
def started(folder: Path, name: str) -> Iterator[Ranks]:
    """Give ranks that are none yet, with directories and keys of their own; they end with the ``with`` block."""
    place = folder / name
    place.mkdir(mode=0o700)
    ring = place / "keys"
    server = keys.make(ring, keys.SERVER)
    pair = keys.make(ring, "bench")
    keys.write_authorized(ring, {pair.public: keys.Client("bench", "observe", pair.public)})
    ranks = Ranks(place, ring, server.public)
    try:
        yield ranks
    finally:
        ranks.end()


def templates(folder: Path) -> tuple[Path, Path]:
    """Write a full recording, and one that differs from it in the middle."""
    same, odd = folder / "same", folder / "odd"
    full(same)
    full(odd, odd=ODD)
    return same, odd


OLD_UP_TO = 64
"""Ranks whose whole recordings one client takes: 1 GiB of them."""


def measure(sizes: list[int], times: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the results: for each size all agree and one group has diverged, and what ``check`` takes of 17 ranks."""
    same, odd = templates(folder)
    for case, other in (("agree", None), ("diverged", odd)):
        with started(folder, case) as ranks:
            for size in sorted(sizes):
                ranks.grow(size, same, odd=other)
                for number in range(times):
                    yield {"case": case, "time": number + 1, **run(ranks, "diff-queues")}
                if size <= OLD_UP_TO:
                    yield {"case": case, "time": 1, **run(ranks, "diff-queues", old=True)}
    with started(folder, "check") as ranks:
        ranks.grow(17, same)
        for number in range(times):
            for command in ("diff-queues", "check"):
                yield {"case": "agree", "time": number + 1, **run(ranks, command)}


def main(sizes: list[int], times: int) -> None:
    """Print a line of JSON for each result."""
    be_apart()
    with tempfile.TemporaryDirectory(prefix="pdf-") as name:
        for result in measure(sizes, times, Path(name)):
            print(json.dumps(result), flush=True)


def be_old() -> None:
    """Be ``pdctl`` as it is where no agent knows of excerpts."""
    from pdctl.__main__ import main
    from pdctl.protocol.rank import Answer, Silence
    from pdctl.recording.excerpt import OP
    from pdctl.targets.client import Client

    ask_each = Client.ask_each

    def asked(client: Client, questions: Any, op: str, kind: Any) -> Any:
        if op == OP:
            return [Answer(rank, None, Silence.ERROR, f"unknown request {OP!r}") for rank, _ in questions]
        return ask_each(client, questions, op, kind)

    Client.ask_each = asked  # type: ignore[method-assign]
    main()
