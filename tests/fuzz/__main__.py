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
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_MIB = 700
"""Resident memory a target may ever have, pdctl's modules and numpy included."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz")
    asked.add_argument("targets", nargs="*", metavar="TARGET")
    asked.add_argument("--seconds", type=int, default=600)
    asked.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where inputs that crash are put")
    asked.add_argument("--replay", type=Path)
    asked.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = asked.parse_args()
    if args.inside:
        return _fuzz(args.targets[0], args.out, args.seconds)
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
    """Run one target in a process of its own; returns whether nothing came of it."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        env = {**os.environ, "TMPDIR": scratch}
        command = [sys.executable, "-m", "tests.fuzz", "--inside", "--seconds", str(seconds), "--out", str(out), name]
        log = out / f"{name}.log"
        with log.open("wb") as stream:
            code = subprocess.run(command, cwd=ROOT, env=env, stdout=stream, stderr=stream, check=False).returncode
    lines = log.read_text(errors="replace").splitlines()
    said = [line.partition("::")[2] for line in lines if line.startswith("stat::") and "number" in line]
    print(f"{name}: exit {code}, {'; '.join(said) or 'it did not get far'} ({log})", flush=True)
    return code == 0


def _fuzz(name: str, out: Path, seconds: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    import atheris

    with atheris.instrument_imports(include=["pdctl"]):
        from tests.fuzz.targets import TARGETS, seeds
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
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
