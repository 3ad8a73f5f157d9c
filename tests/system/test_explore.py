"""``pdctl explore --model`` as a user types it: in a process of its own, with its files, its schema and its refusals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.schema import load_schema
from tests.support import cli_server

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = load_schema("pdctl.explore")


def pdctl(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return cli_server.run([*map(str, arguments)], {**os.environ, "COLUMNS": "100", **environ})


def document(*arguments: object, code: int) -> dict[str, Any]:
    done = pdctl("explore", *arguments, "-o", "json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "results": [{**result, "seconds": 0} for result in found["results"]]}


def test_all_policies_their_verdicts_and_what_was_tried() -> None:
    found = document("--model", "ranks=2,requests=2,rounds=3", code=1)
    assert {r["policy"]: r["verdict"] for r in found["results"]} == {
        "no-gate": "BROKEN",
        "gate-zero": "HOLDS",
        "gate-zero-unzeroed": "BROKEN",
        "gate-expected": "HOLDS",
        "receiver-old": "BROKEN",
        "receiver-new": "HOLDS",
        "pp-filter-old": "BROKEN",
        "pp-filter-new": "HOLDS",
    }
    assert {(r["covered"], r["schedules"] == r["of"]) for r in found["results"]} == {("exhaustive", True)}
    assert found["verdict"] == "BROKEN"
    [kept] = [e for e in found["results"][0]["counterexamples"] if e["way"] == "kept"]
    assert (kept["ranks"], kept["requests"], kept["round"]) == (2, 1, 0)
    assert sorted(part["rounds"]["metadata"] is None for part in kept["parts"]) == [False, True]


def test_a_policy_that_holds_exits_with_0_and_a_sample_that_finds_nothing_with_3() -> None:
    held = document("--model", "ranks=2,requests=2", "--policy", "gate-zero", "--policy", "receiver-new", code=0)
    assert held["verdict"] == "HOLDS"
    sampled = document("--model", "ranks=8,requests=6,rounds=5", "--policy", "gate-zero", "--schedules", 5000, code=3)
    [result] = sampled["results"]
    assert (sampled["verdict"], result["covered"], result["schedules"]) == ("INCONCLUSIVE", "sampled", 5000)
    assert result["of"] is None


def test_a_time_limit_cuts_it_short() -> None:
    cut = document("--model", "ranks=2,requests=4", "--policy", "gate-expected", "--exhaustive", "--for", "1ms", code=3)
    [result] = cut["results"]
    assert (result["verdict"], result["covered"]) == ("INCONCLUSIVE", "cut short")
    assert 0 < result["schedules"] < result["of"]


def test_same_seed_same_answer() -> None:
    arguments = ("--model", "ranks=4,requests=4,rounds=4", "--schedules", 20000, "--policy", "no-gate")
    one, again = (without_times(document(*arguments, "--seed", 5, code=1)) for _ in range(2))
    other = without_times(document(*arguments, "--seed", 6, code=1))
    assert one == again
    assert one["results"][0]["parted"] != other["results"][0]["parted"]


def test_counterexamples_are_written_and_read_by_the_commands_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    done = pdctl("explore", "--model", "ranks=3,requests=2", "--policy", "no-gate", "--write", folder)
    assert done.returncode == 1, done.stderr
    assert {path.name for path in folder.iterdir()} == {
        f"no-gate-{way}.pdtrace" for way in ("kept", "mixed", "aborted")
    }
    [line] = [line for line in done.stdout.splitlines() if "no-gate-kept" in line]
    judged = pdctl(*line.partition("Next: pdctl ")[2].split())
    assert judged.returncode == 1
    assert "DIVERGED at round 0" in judged.stdout
    assert "PD101" in judged.stdout
    assert "kept it" in judged.stdout
    told = pdctl("story", 7001, "--from", folder / "no-gate-kept.pdtrace")
    assert told.returncode == 0
    assert "committed in round 0 of decode.transfer" in told.stdout
    again = pdctl("explore", "--model", "ranks=3,requests=2", "--policy", "no-gate", "--write", folder)
    assert again.returncode == 2
    assert "File exists" in again.stderr


def test_people_read_it_in_100_columns() -> None:
    done = pdctl("explore", "--model", "ranks=2,requests=2")
    assert done.returncode == 1
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "HOLDS" in done.stdout
    assert "one rank commits what another keeps" in done.stdout
    assert "all 65,536" in done.stdout


REFUSED = {
    "no-ranks": (("--model", "ranks=0"), 2, "ranks=0: a number from 2 to 64"),
    "one-rank": (("--model", "ranks=1"), 2, "one rank has nobody to differ from"),
    "huge": (("--model", "ranks=1000000000000"), 2, "a number from 2 to 64"),
    "unknown-word": (("--model", "gpus=2"), 2, "a model is ranks=N"),
    "no-model": (("--model", "many"), 2, "a model is ranks=N"),
    "twice": (("--model", "ranks=2,ranks=3"), 2, "given twice"),
    "late-arrivals": (("--model", "ranks=2,rounds=2,arrivals=3"), 2, "arrive within the 2 rounds"),
    "too-many": (("--model", "ranks=4,requests=4,rounds=3", "--exhaustive"), 5, "too many to try all"),
    "policy": (("--model", "ranks=2", "--policy", "no-gat"), 2, "Did you mean no-gate?"),
    "device": (("--model", "ranks=2", "--device", "tpu"), 2, "cpu, cuda or cuda:N"),
    "both-amounts": (("--model", "ranks=2", "--exhaustive", "--schedules", "3"), 2, "Leave one of them out"),
    "nothing": ((), 2, "pdctl explore TRACE, or pdctl explore --model ranks=2,requests=3"),
    "both-searches": (("x", "--model", "ranks=2"), 2, "two different searches"),
    "of-replay": (("x", "--gate", "off"), 2, "No such option: --gate"),
    "write-nowhere": (("--model", "ranks=2", "--write", "/nowhere/at/all"), 2, "No such file"),
}


@pytest.mark.parametrize(("arguments", "code", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_the_next_step(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = CliRunner().invoke(app, ["explore", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_no_cuda_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    done = pdctl("explore", "--model", "ranks=2", "--device", "cuda")
    assert done.returncode == 2
    assert "--device cuda" in done.stderr
    assert "Use --device cpu" in done.stderr


@pytest.mark.gpu
def test_cuda_gives_what_the_cpu_gives() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    for more in (("--model", "ranks=2,requests=3"), ("--model", "ranks=5,requests=6,rounds=6", "--schedules", 100000)):
        on = [{**without_times(document(*more, "--device", d, code=1)), "device": ""} for d in ("cpu", "cuda")]
        assert on[0] == on[1]
