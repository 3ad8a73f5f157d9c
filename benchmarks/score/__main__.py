"""Does known harm to labs, asks pdctl as a user does, and counts what it tells, what it misses and what it makes up.

    python -m benchmarks.score --out DIR [--runs 1000] [--minutes 60] [--seed 0] [--case TEXT] [--report]

Each run: a case of cases.py on 2, 4 or 8 ranks, with choices of its seed. A look before, the harm, looks until it is told, the
harm is ended, a look after. A run whose harm did not happen is discarded, and counted. Rows are appended to DIR/rows.jsonl;
the next call goes on after them. --report prints tables of all rows and draws DIR/score.png.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.score import rows as of
from benchmarks.score.cases import CASES, Case
from benchmarks.score.stage import NotFiredError, Stage, Truth, patience
from tests.support.labs import Labs

PATIENT = ("--rank-timeout", "30s", "--timeout", "120s")
EVERY_S = 0.5
AGAIN_S = 10.0
"""How long a finding that lacks the room or a rank is asked for again."""
LOOKS = 2
"""Looks at a twin."""

Run = tuple[Case, int, int]
"""A case, its number of ranks, its seed."""


def plan(seed: int, names: str = "", sizes: tuple[int, ...] = ()) -> Iterator[list[Run]]:
    """Yield runs without end, those that can share a lab together; each seed has each case once for each of its sizes."""
    for at in count(seed):
        shared: dict[tuple[str, ...], list[Run]] = {}
        for case in CASES:
            for n in case.sizes:
                if names in case.name and (not sizes or n in sizes):
                    key = case.up(n) if case.again else (case.name, str(n))
                    shared.setdefault(key, []).append((case, n, at))
        batches = list(shared.values())
        batches.sort(key=lambda batch: zlib.crc32(f"{batch[0][0].name} {batch[0][1]} {at}".encode()))
        yield from batches


def look(labs: Labs, *words: str, patient: bool = True) -> dict[str, Any]:
    """Return what a command says. patient: a rank that is slow on a busy machine is waited for."""
    done = labs.cli(*words, "-o", "json", *(PATIENT if patient else ()), code=None)
    if not done.stdout or "Traceback" in done.stderr:
        raise AssertionError(f"{words}: {done.returncode} {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def make(stage: Stage, run: Run) -> dict[str, Any]:
    """Make one run and return its row."""
    case, n, seed = run
    labs = stage.labs
    row: dict[str, Any] = {
        "case": case.name, "kind": case.kind, "twin": case.twin, "ranks": n, "seed": seed, "discarded": "", "code": "",
        "room": None, "rank": None, "round": None, "seconds": None, "false": [], "looks": 0, "partial": [],
        "load": os.getloadavg()[0], "at": time.time(),
    }  # fmt: skip

    def ask(truth: Truth, *words: str) -> dict[str, Any]:
        document = look(labs, *words, patient=not truth.silent)
        row["looks"] += 1
        if truth.codes and stage.ended():  # ranks that part may end, too: Gloo aborts on a message of another size
            truth = replace(truth, also=(*truth.also, "PD113", "PD112"))
        row["false"] += [one for one in of.false(truth, document) if one not in row["false"]]
        row["partial"] += document.get("problems", []) if document.get("partial") else []
        return document

    stage.begin(zlib.crc32(f"{case.name} {n} {seed}".encode()))
    truth = Truth()
    try:
        truth = case.make(stage)
        if case.twin:
            for number in range(LOOKS):
                ask(
                    truth,
                    "check" if number < LOOKS - 1 else "diff-queues",
                    *(("--pause", "300ms") if number == 0 else ()),
                )
        else:
            told(stage, truth, row, ask)
    except NotFiredError as error:
        row["discarded"] = str(error)
    finally:
        stage.end()
    return row


def told(stage: Stage, truth: Truth, row: dict[str, Any], ask: Any) -> None:
    """Ask until the truth is told, then once for everything."""
    end = time.monotonic() + patience(truth.limit_s)
    while True:
        document = ask(truth, *truth.ask)
        finding = of.right(truth, document)
        whole = finding is not None and all(value is not False for value in of.names(finding, truth).values())
        if finding is not None:
            row["seconds"] = row["seconds"] or round(time.monotonic() - stage.fired_at, 2)
            end = min(end, time.monotonic() + AGAIN_S)  # it may say more once it has seen more
        if whole or time.monotonic() > end:
            break
        time.sleep(EVERY_S)
    if truth.ask != ("check",):
        ask(truth, "check")
    if finding is None:
        row["others"] = [f"{one['code']} {one['summary']}" for one in document["findings"]]
        return
    row |= {"code": finding["code"], **of.names(finding, truth)}
    if not whole:
        row["said"] = finding["summary"]
    if truth.parts:
        expected = stage.parted(truth)
        groups = [one for one in ask(truth, "diff-queues")["groups"] if one["role"] == "decode"]
        rounds = [one["round"] for one in groups if one["round"] >= 0]
        row["round"] = expected in rounds
        row["rounds"] = [expected, *rounds]


def well(stage: Stage, row: dict[str, Any]) -> bool:
    """Whether a lab serves, and nothing is found, after a run; what is found then is false."""
    end = time.monotonic() + patience(30)
    while True:
        outcome = stage.lab.load(requests=2, seconds=patience(20))
        document = look(stage.labs, "check", "--pause", "300ms")
        found = of.false(Truth(), document)
        if outcome.good and not found:
            return True
        if time.monotonic() > end:
            row["false"] += [f"{one} (after)" for one in found]
            row["not well"] = str(outcome.errors or outcome.unfinished)
            return False
        time.sleep(EVERY_S)


def runs(batch: list[Run], end: float) -> Iterator[dict[str, Any]]:
    """Make the runs of a batch, on one lab as long as it comes out well, and yield their rows."""
    left = list(batch)
    while left and time.monotonic() < end:
        with Labs() as labs:
            case, n, seed = left[0]
            try:
                lab = labs.up(*case.up(n), "--timeout", "120s")
            except AssertionError as error:
                print(f"no lab: {str(error)[:500]}", file=sys.stderr)
                return
            stage = Stage(labs, lab, n, seed)
            while left and time.monotonic() < end:
                run = left.pop(0)
                row = make(stage, run)
                again = case.again and well(stage, row)
                yield row
                if not again:
                    break
            labs.cli("lab", "down", code=None)


def done(path: Path) -> list[dict[str, Any]]:
    """Return the rows that there are; a line that was cut off counts for nothing."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def main(arguments: list[str] | None = None) -> int:
    """Make runs, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1000, help="rows in all")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--part", default="0/1", help="K/N: only each Nth batch, so that N of these can run side by side"
    )
    parser.add_argument("--case", default="", help="only cases whose name has this text")
    parser.add_argument("--ranks", type=int, action="append", default=[])
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.jsonl"
    if given.report:
        from benchmarks.score.report import report

        report(done(path), given.out)
        return 0
    part, parts = map(int, given.part.split("/"))
    end = time.monotonic() + 60 * given.minutes
    had = done(path)
    known = {(row["case"], row["ranks"], row["seed"]) for row in had}
    for number, batch in enumerate(plan(given.seed, given.case, tuple(given.ranks))):
        if time.monotonic() >= end or len(done(path)) >= given.runs:
            break
        left = [run for run in batch if (run[0].name, run[1], run[2]) not in known]
        if number % parts != part or not left:
            continue
        for row in runs(left, end):
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
