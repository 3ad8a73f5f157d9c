"""``python -m tests.fuzz [--seconds 600] [--out DIR] [TARGET…]``: each target in a process; exit code 1 on any crash.

``python -m tests.fuzz --replay FILE TARGET`` runs one input again.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_MIB = 700
"""Resident memory a target may ever have, pdctl's modules and numpy included."""
SLICE_S = 60
"""How long a process fuzzes: atheris itself grows by some 28 KB an execution and slows down; the corpus is passed on."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz")
    asked.add_argument("targets", nargs="*", metavar="TARGET")
    asked.add_argument("--seconds", type=int, default=600)
    asked.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where inputs that crash are put")
    asked.add_argument("--replay", type=Path)
    asked.add_argument("--inside", type=Path, metavar="CORPUS", help=argparse.SUPPRESS)
    args = asked.parse_args()
    if args.inside:
        return _fuzz(args.targets[0], args.out, args.seconds, args.inside)
    from tests.fuzz.targets import TARGETS

    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown or (args.replay and len(args.targets) != 1):
        asked.error(f"targets are {', '.join(TARGETS)}")
    if args.replay:
        TARGETS[args.targets[0]](args.replay.read_bytes())
        return 0
    failed = [name for name in args.targets or TARGETS if not _outside(name, args.seconds, args.out)]
    print(f"crashed: {', '.join(failed)}; inputs are in {args.out}" if failed else "no crash")
    return int(bool(failed))


def _outside(name: str, seconds: int, out: Path) -> bool:
    """Run one target in processes of its own, one after the other; returns whether nothing came of it."""
    out.mkdir(parents=True, exist_ok=True)
    log, code, end = out / f"{name}.log", 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch, log.open("wb") as stream:
        corpus = Path(scratch, "corpus")
        env = {**os.environ, "TMPDIR": scratch}
        while code == 0 and (left := end - time.monotonic()) > 1:
            limit = str(min(SLICE_S, int(left)))
            command = [sys.executable, "-m", "tests.fuzz", "--inside", str(corpus), "--seconds", limit]
            command += ["--out", str(out), name]
            code = subprocess.run(command, cwd=ROOT, env=env, stdout=stream, stderr=stream, check=False).returncode
    stats = [
        line.partition("::")[2].split() for line in log.read_text(errors="replace").splitlines() if "stat::" in line
    ]
    runs = sum(int(value) for what, value in stats if what == "number_of_executed_units:")
    peak = max((int(value) for what, value in stats if what == "peak_rss_mb:"), default=0)
    print(f"{name}: exit {code}, {runs} executions, at most {peak} MiB ({log})", flush=True)
    return code == 0 and runs > 0


def _fuzz(name: str, out: Path, seconds: int, corpus: Path) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    import atheris

    with atheris.instrument_imports(include=["pdctl"]):
        from tests.fuzz.targets import TARGETS, seeds
    if not corpus.exists():
        corpus.mkdir()
        for number, seed in enumerate(seeds(name)):
            (corpus / f"{number}").write_bytes(seed)
    limits = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MOST_MIB}",
        "-timeout=60",
        "-print_final_stats=1",
        "-max_len=8192",
    ]
    atheris.Setup([name, str(corpus), f"-artifact_prefix={out}/{name}-", *limits], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
