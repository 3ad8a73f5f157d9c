"""``--watch``: its time may be left out, and it goes on until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.watching import watch, with_times
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

TRACE = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"


def looks(*outcomes: Any) -> Callable[[Output], int]:
    """Return a look that comes to one outcome after the other: an exit code, or what it raises."""
    left = iter(outcomes)

    def look(out: Output) -> int:
        outcome = next(left)
        if isinstance(outcome, BaseException):
            raise outcome
        out.lines(f"came to {outcome}")
        return int(outcome)

    return look


def test_it_ends_with_the_last_looks_exit_code() -> None:
    assert watch(looks(0, 3, 1, KeyboardInterrupt()), Format.TABLE, 0.001) == 1


def test_a_ctrl_c_that_a_library_swallows_ends_it_all_the_same() -> None:
    def look(out: Output) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return next(codes)

    codes = iter((3,))
    assert watch(look, Format.TABLE, 0.001) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, late = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    come = looks(0, 3, 1, AssertionError("one look too many"))

    def look(out: Output) -> int:
        late[0] += 40.0
        return come(out)

    assert watch(look, Format.TABLE, 0.001, for_s=100.0) == 1


def test_before_the_first_look_it_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(looks(KeyboardInterrupt()), Format.TABLE, 0.001)


def test_no_ranks_are_said_once_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = PdctlError("there are no ranks", "start some", Exit.UNREACHABLE)
    assert watch(looks(nobody, nobody, nobody, KeyboardInterrupt()), Format.TABLE, 0.001) == Exit.UNREACHABLE
    assert watch(looks(nobody, 0, KeyboardInterrupt()), Format.TABLE, 0.001) == Exit.CLEAN
    shown = capsys.readouterr()
    assert shown.err == "pdctl: there are no ranks\n  Next: Start some\n" * 2
    assert "came to 0" in shown.out


def test_wrong_usage_ends_it_at_the_first_look_only() -> None:
    wrong = PdctlError("no rank matches 'x'", "look", Exit.USAGE)
    with pytest.raises(PdctlError):
        watch(looks(wrong), Format.TABLE, 0.001)
    assert watch(looks(0, wrong, 0, KeyboardInterrupt()), Format.TABLE, 0.001) == 0


@pytest.mark.parametrize("command", ["ranks", "diff-queues", "stuck", "check", "faults"])
@pytest.mark.parametrize("time", ["--watch", "--watch 1s", "--watch=1s"])
def test_a_time_may_be_left_out(command: str, time: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [command, *time.split(), "-o", "csv", "--run-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "--watch: -o csv is one document" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ranks --watch soon", "soon"),
        ("ranks --watch=", "duration is empty"),
        (f"ranks --watch --from {TRACE}", "a trace does not change"),
        ("faults --watch --wait-for-hit x", "looks again by itself"),
        ("story 7 --watch", "No such option"),
    ],
)
def test_what_can_not_be_watched_is_refused(words: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*words.split(), "--run-dir", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.output or said in str(done.exception)


@pytest.mark.parametrize(
    ("words", "with_time"),
    [
        ((), []),
        (("--watch",), ["--watch=2s"]),
        (("--watch", "5s"), ["--watch", "5s"]),
        (("--watch", "-o", "jsonl"), ["--watch=2s", "-o", "jsonl"]),
        (("--watch=5s", "-o", "wide"), ["--watch=5s", "-o", "wide"]),
    ],
)
def test_a_watch_without_a_time_gets_one(words: tuple[str, ...], with_time: list[str]) -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    assert with_times(group.get_command(context, "ranks"), words) == with_time
