"""Every command prints what tests/golden/files has. ``python -m tests.golden --write`` takes a wanted change over."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.golden.cases import CASES, Case
from tests.golden.golden import FILES, Stage, difference, path
from tests.golden.masks import Masks, user
from tests.golden.running import Printed
from tests.golden.worlds import WORLDS

pytestmark = pytest.mark.system


def of(*worlds: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if case.world in worlds]
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture(scope="class")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def check(stage: Stage, case: Case) -> None:
    lines = difference(case, stage.seen(case))
    if lines:
        pytest.fail(lines, pytrace=False)


# A class has one lab, and runs in one worker.


class TestWithoutRanks:
    @of("offline", "usage", "nobody")
    def test_case(self, stage: Stage, case: Case) -> None:
        check(stage, case)


class TestServing:
    @of("healthy", "waiting", "stopped")
    def test_case(self, stage: Stage, case: Case) -> None:
        check(stage, case)


class TestHung:
    @of("hung", "dead")
    def test_case(self, stage: Stage, case: Case) -> None:
        check(stage, case)


class TestWithoutAgent:
    @of("outside")
    def test_case(self, stage: Stage, case: Case) -> None:
        check(stage, case)


SEEN = """\
PD114  pid {pid} is stopped. Next: kill -CONT {pid} lets it go on
?  {pid}  -  -  can't be read
held by {user}@{host}:{pid} already
  dp0 pp0 tp0  {pid}  live
rank_port  differs  {port}  {port} at 127.0.0.1:{port}
"""


@pytest.mark.parametrize("pid", [2, 41234, 4194304])
def test_pids_are_masked_whoever_runs_the_tests(pid: int) -> None:
    """A pid may be in the range of the ports that the kernel gives away."""
    printed = Printed(0, SEEN.format(pid=pid, user=user(), host=socket.gethostname(), port=50007), "")
    masked = Masks("/nowhere", live=True, moving=False).of(printed, "table")
    assert masked.out == SEEN.format(pid="<pid>", user="<user>", host="<host>", port="<port>")


def test_each_file_is_of_a_case() -> None:
    assert {path(case) for case in CASES} == set(FILES.rglob("*.txt"))
    assert {case.world for case in CASES} == set(WORLDS)
    assert len({case.name for case in CASES}) == len(CASES)
