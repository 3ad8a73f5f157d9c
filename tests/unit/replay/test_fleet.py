"""The fleet projection against the explorer's own rule on drawn schedules, and against recordings with known lags."""

from __future__ import annotations

import json
import math
import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.schema import load_schema
from pdctl.explore.kernels import Batch, Kernel
from pdctl.explore.policies import POLICIES
from pdctl.explore.recordings import write
from pdctl.explore.space import Cell, Schedule
from pdctl.recording.reader import read
from pdctl.replay.fleet import HOUR_S, Fleet, Lag, any_in, counted, parts, project
from pdctl.replay.fleet_measure import measure

MEASURED = Lag(0.3, measured_s=(0.002, 0.004, 0.012, 0.013, 0.021))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the explorer's own search runs: threads that wait for each other stand still on a machine that others use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def simulated(lag: Lag, group: int, round_s: float, count: int, policy: str = "no-gate") -> float:
    """Share of ``count`` requests that part, each stepped by the explorer's kernel with lags drawn from a seed."""
    draw = torch.Generator().manual_seed(7)
    later, shape = 60, (group, 1, count)
    late = torch.rand(shape, generator=draw, dtype=torch.float64) < lag.late
    if lag.measured_s:
        picked = torch.randint(len(lag.measured_s), shape, generator=draw)
        by = torch.tensor(lag.measured_s, dtype=torch.float64)[picked]
    else:
        by = torch.empty(shape, dtype=torch.float64).exponential_(1 / lag.mean_s, generator=draw)
    landed = torch.where(late, (by / round_s).ceil().clamp(1, later), 0.0).to(torch.uint8)
    nothing = torch.zeros_like(landed)
    parted = Kernel(POLICIES[policy]).run(Batch(later, nothing, landed, nothing))
    return int(parted.ne(0).sum()) / count


@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize(
    "lag", [Lag(0.01, 0.004), Lag(0.5, 0.03), Lag(1.0, 0.02), MEASURED], ids=["rare", "half", "always", "measured"]
)
def test_the_closed_form_is_what_the_explorers_rule_gives(lag: Lag, group: int) -> None:
    count = 40_000
    expected = parts(lag, group, 0.01)
    got = simulated(lag, group, 0.01, count)
    assert abs(got - expected) < 5 * math.sqrt(expected * (1 - expected) / count) + 1e-9
    assert 0 < expected < 1


def test_with_the_gate_none_part() -> None:
    assert simulated(Lag(0.5, 0.03), 4, 0.01, 5000, policy="gate-zero") == 0


def test_an_hour_of_a_fleet_is_as_many_requests() -> None:
    """A fleet is drawn request by request for an hour, many times over: in that share of hours any parts."""
    fleet = Fleet(ranks=40, group=4, rate=0.02, round_s=0.01)
    lag = Lag(0.0005, 0.004)
    document = project(fleet, lag, source="as given")
    pick = random.Random(3)
    hours = 1500
    each = round(fleet.rate * HOUR_S * fleet.groups)
    hit = sum(pick.random() < 1 - (1 - document.request) ** each for _ in range(hours)) / hours
    by_request = sum(any(pick.random() < document.request for _ in range(each)) for _ in range(hours)) / hours
    for got in (hit, by_request):
        assert abs(got - document.hour) < 5 * math.sqrt(document.hour * (1 - document.hour) / hours)


def test_it_grows_with_ranks_rate_and_lateness() -> None:
    lag = Lag(1e-6, 0.003)
    hours = [project(Fleet(ranks), lag, source="").hour for ranks in (8, 80, 800, 8000)]
    assert hours == sorted(hours)
    assert project(Fleet(800, rate=50), lag, source="").hour > project(Fleet(800, rate=5), lag, source="").hour
    assert parts(Lag(1e-12, 0.003), 8, 0.01) == pytest.approx(8e-12, rel=1e-6)  # no cancellation
    assert parts(Lag(0.0), 8, 0.01) == 0
    assert project(Fleet(800), Lag(0.0), source="").until_s is None
    assert any_in(10, 1.0) == 1.0


def test_bounds_of_what_was_counted() -> None:
    few, many = counted([0.001], 100), counted([0.001] * 100, 10_000)
    for lag in (few, many):
        assert lag.low is not None
        assert lag.high is not None
        assert lag.low < lag.late == 0.01 < lag.high
    assert few.high > many.high  # type: ignore[operator]
    none = counted([], 1000)
    assert (none.late, none.low) == (0.0, 0.0)
    assert 0.001 < none.high < 0.006  # type: ignore[operator]


def recordings(folder: Path) -> Path:
    """Two ranks, three requests held by the gate: of six slots two read 0 at Success, and land later."""
    cells = ((Cell(0, 2), Cell(0, 0), Cell(1, 1)), (Cell(0, 0), Cell(0, 0), Cell(1, 2)))
    write(POLICIES["gate-zero"], Schedule(4, (0, 0, 0), cells), folder)
    return folder


def test_lag_and_pace_are_measured_in_recordings(tmp_path: Path) -> None:
    found = measure([read(path) for path in sorted(recordings(tmp_path / "t").iterdir())])
    assert (found.total, len(found.late_s)) == (6, 2)
    assert all(0.001 < late < 5 for late in found.late_s)
    slow, fast = sorted(found.late_s, reverse=True)
    assert slow > fast  # two rounds, and one


def test_a_row_that_was_never_seen_to_land_was_late(tmp_path: Path) -> None:
    """Real SGLang 0.5.12.post1 as it hung: three requests were Success while one rank's slots read 0 to the end."""
    trace = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
    code, text = replay(trace, "--fleet", "ranks=800,group=2", "-o", "json")
    document = json.loads(text)
    assert code == 0
    assert document["late"] == pytest.approx(3 / document["observed"])
    assert 0 < document["request_low"] < document["request"] < document["request_high"]
    assert 0.0001 < document["round_s"] < 1  # the pace of its own rounds


def replay(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command(tmp_path: Path) -> None:
    fleet = "ranks=10000,group=8,rate=5/s,round=10ms"
    code, text = replay("--fleet", fleet, "--lag", "late=0.001%,mean=3ms", "-o", "json")
    document = json.loads(text)
    assert code == 0
    jsonschema.validate(document, load_schema("pdctl.fleet"))
    assert document["groups"] == 1250
    assert document["request"] == pytest.approx(8e-5, rel=1e-3)
    assert document["hour"] == pytest.approx(1.0)
    assert document["until_s"] == pytest.approx(1 / (8e-5 * 6250), rel=1e-2)
    code, text = replay("--fleet", fleet, "--lag", "late=0.001%,mean=3ms")
    assert code == 0
    assert "assumes" in text
    assert "Ranks have no metadata gate" in " ".join(text.split())
    code, text = replay(recordings(tmp_path / "t"), "--fleet", "ranks=800", "-o", "json")
    document = json.loads(text)
    assert (code, document["observed"], document["source"]) == (0, 6, "measured")
    assert document["late"] == pytest.approx(1 / 3)
    assert document["request_low"] < document["request"] <= document["request_high"]


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("--fleet", "ranks=10000", "--lag", "late=0.0001%,mean=3ms", "--plot")
    code, text = replay(*arguments, tmp_path / "f.svg")
    assert code == 0, text
    root = ET.fromstring((tmp_path / "f.svg").read_text())
    said = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "10,000 ranks" in said
    assert "independent between ranks" in said
    assert replay(*arguments, tmp_path / "f.png")[0] == 0
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert replay(*arguments, tmp_path / "f.svg")[0] == 2


REFUSED = {
    "no-ranks": (("--fleet", "rate=5/s", "--lag", "late=1%"), "ranks=N is missing"),
    "zero": (("--fleet", "ranks=0", "--lag", "late=1%"), "a number from 8"),
    "rate": (("--fleet", "ranks=80,rate=fast", "--lag", "late=1%"), "is no number"),
    "nan": (("--fleet", "ranks=80,rate=nan", "--lag", "late=1%"), "from 1e-06"),
    "late": (("--fleet", "ranks=80", "--lag", "late=2"), "a share from 0 to 1"),
    "no-lag": (("--fleet", "ranks=80"), "nothing says how late"),
    "both": (("--fleet", "ranks=80", "--model", "ranks=2"), "no search"),
    "lag-alone": (("--lag", "late=1%"), "--lag is of --fleet"),
    "picture": (("--fleet", "ranks=80", "--lag", "late=1%", "--plot", "f.gif"), "ends in none of .svg, .png"),
}


@pytest.mark.parametrize(("arguments", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(arguments: tuple[str, ...], says: str) -> None:
    code, text = replay(*arguments)
    assert code == 2
    assert says in " ".join(text.split())
