"""Hosts that run pdctl themselves: what one command takes that asks them over bridges.

    python -m benchmarks.bridges [--hosts 1 8 32 64] [--ranks 8] [--times 3]

A far side is a child process that answers as a host with so many ranks does, without ranks: what is measured is the client and
the bridges, not the ranks. Each reading is a process of its own. A line of JSON for each number of hosts: wall and CPU
milliseconds of the client until all hosts are connected and listed, and for a question to all ranks then; MiB of the client.
The last line has the MiB of a real ``pdctl bridge``. Starting the stand-ins takes most of the wall time: they share the
client's processors.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import time

import msgspec

from pdctl.protocol import wire
from pdctl.protocol.model import Identity
from pdctl.targets import bridges
from pdctl.targets.bridge_frames import LIST, MAGIC, Ask, FarRank, Listing, Told

STATUS = 2_000
"""Bytes of an answer, as those of ``status`` are."""


def be_host(number: int, count: int) -> None:
    """Be the far side of one host with ``count`` ranks."""
    began = False
    while head := os.read(0, 4):
        data = b""
        size = struct.unpack("<I", head)[0]
        while len(data) < size:
            data += os.read(0, size - len(data))
        ask = msgspec.msgpack.decode(data, type=Ask)
        if ask.op == LIST:
            payload = msgspec.msgpack.encode(Listing(ranks=tuple(_rank(number, n, count) for n in range(count))))
        else:
            asked = wire.decode_request(ask.payload).id
            payload = wire.encode(wire.Reply(id=asked, body=msgspec.Raw(wire.encode(b"x" * STATUS))))
        frame = msgspec.msgpack.encode(Told(ask.channel, payload))
        os.write(1, (b"" if began else MAGIC) + struct.pack("<I", len(frame)) + frame)
        began = True


def _rank(host: int, number: int, count: int) -> FarRank:
    identity = Identity(
        engine="sglang", engine_version="0.5.13", pdctl_version="0", role="decode", host=f"gpu{host}", pid=1000 + number,
        proc_start=1, started_wall_ns=1, started_mono_ns=1, instance="one", service=f"decode gpu{host}:30000", cluster="",
        world="w", world_rank=number, tp=number, tp_size=count,
    )  # fmt: skip
    return FarRank(f"gpu{host}|{number}", identity, "live", "ipc:///x", protocol=wire.PROTOCOL)


def measure(hosts: int, ranks: int) -> dict[str, float]:
    """Return the readings of one client, this process."""
    from pdctl.targets.client import Client

    fars = [
        bridges.Far(f"gpu{n}", (sys.executable, "-m", "benchmarks.bridges", "--be", str(n), "--ranks", str(ranks)))
        for n in range(hosts)
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    found = bridges.open_all(fars, time.monotonic() + 300.0, [])
    connected, connected_cpu = time.perf_counter(), time.process_time()
    with Client(timeout_s=300.0, rank_timeout_s=300.0) as client:
        answers = client.ask(found, "status", bytes)
    asked, asked_cpu = time.perf_counter(), time.process_time()
    if any(answer.body is None for answer in answers) or len(answers) != hosts * ranks:
        raise SystemExit("a rank did not answer")
    return {
        "connect_ms": (connected - wall) * 1000,
        "connect_cpu_ms": (connected_cpu - cpu) * 1000,
        "ask_ms": (asked - connected) * 1000,
        "ask_cpu_ms": (asked_cpu - connected_cpu) * 1000,
        "client_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def bridge_mib() -> float:
    """Return the MiB of a real ``pdctl bridge`` that has listed this host."""
    loads = "import resource, pdctl.cli, pdctl.commands.bridge, pdctl.targets.bridge_far"
    told = f"{loads}; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    return float(subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, or be a host."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--be", type=int)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    if options.be is not None:
        be_host(options.be, options.ranks)
        return
    if options.once:
        print(json.dumps(measure(options.hosts[0], options.ranks)))
        return
    for hosts in options.hosts:
        command = [
            sys.executable,
            "-m",
            "benchmarks.bridges",
            "--once",
            "--hosts",
            str(hosts),
            "--ranks",
            str(options.ranks),
        ]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(options.times)
        ]
        medians = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
        print(
            json.dumps({"benchmark": "bridges", "hosts": hosts, "ranks": hosts * options.ranks, **medians}), flush=True
        )
    print(json.dumps({"benchmark": "bridges", "bridge_mib": round(bridge_mib(), 1)}))


if __name__ == "__main__":
    main()
