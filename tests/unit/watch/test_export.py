"""What is served between looks, the file of the textfile collector, and command lines that can't be."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.export import _once
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Output
from pdctl.watch.export import STALE_S, Exporter, TextFile
from pdctl.watch.model import GroupState, RankState, WatchState

if TYPE_CHECKING:
    from pdctl.watch.eye import Eye

NAME = "decode dp0 pp0 tp0"


def state(verdict: str = "AGREE") -> WatchState:
    rank = RankState(rank=NAME, role="decode", state="live")
    group = GroupState(title="G", kind="polls", verdict=verdict, ranks=(NAME,))
    return WatchState(at_wall_ns=10**9, took_s=0.1, ranks=(rank,), groups=(group,))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def status(exporter: Exporter, path: str) -> tuple[int, str]:
    answer = exporter.answer(path)
    assert answer is not None
    return answer.status.value, answer.body.decode()


class Seeing:
    """An eye whose ranks are seen by the whole check only: by the third look. found: whether there are any.

    silent: also a host that gives no rank.
    """

    def __init__(self, *, found: bool, silent: bool = False) -> None:
        host = RankState(rank="gpu2", role="unknown", state="silent", reason="Connection refused", host=True)
        self._found, self._hosts, self._looks = found, (host,) * silent, 0
        self.checked = False

    def next(self) -> WatchState:
        self._looks += 1
        self.checked = self._looks > 2
        silent = tuple(f"{host.rank}: {host.reason}" for host in self._hosts)  # as the judge of queues says it
        if not self.checked or not self._found:
            problems = (*silent, *("no ranks found",) * self.checked)
            return WatchState(at_wall_ns=1, took_s=0.1, ranks=self._hosts, problems=problems)
        ranks = (*state().ranks, *self._hosts)
        return msgspec.structs.replace(state(), ranks=ranks, checked_wall_ns=1, problems=silent)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("found", [True, False])
def test_once_waits_for_the_check_that_finds_ranks(tmp_path: Path, found: bool, silent: bool) -> None:
    file, err = tmp_path / "pdctl.prom", io.StringIO()
    eye = cast("Eye", Seeing(found=found, silent=silent))
    asked = (eye, Exporter(every_s=1, stall_s=30), TextFile(file), Output(err=err), threading.Event())
    if found:
        assert _once(*asked, 60.0) is (Exit.PARTIAL if silent else Exit.CLEAN)
        assert err.getvalue().count("gpu2: Connection refused") == silent
        assert "pdctl_rank" in file.read_text()
        return
    with pytest.raises(PdctlError, match="no rank is seen") as raised:
        _once(*asked, 60.0)
    assert raised.value.details.count("gpu2: Connection refused") == silent


def test_before_the_first_look_nothing_is_told() -> None:
    exporter = Exporter(every_s=1, stall_s=30)
    assert "pdctl_up 0" in status(exporter, "/metrics")[1].splitlines()
    assert status(exporter, "/livez")[0] == 200
    assert exporter.answer("/nosuch") is None


def test_a_look_that_is_too_old_tells_nothing_of_the_ranks() -> None:
    clock = Clock()
    exporter = Exporter(every_s=1, stall_s=30, clock=clock)
    exporter.take(state("DIVERGED"))
    assert "pdctl_up 1" in status(exporter, "/metrics")[1].splitlines()
    assert (
        'pdctl_group_diverged{cluster="",service="",role="",group="G",kind="polls"} 1'
        in status(exporter, "/metrics")[1]
    )
    assert status(exporter, "/livez") == (503, '{"restart":["G diverged"]}\n')
    clock.now += STALE_S + 4
    text = status(exporter, "/metrics")[1]
    assert "pdctl_up 0" in text.splitlines()
    assert "pdctl_look_timestamp_seconds 1" in text.splitlines()
    assert "pdctl_group" not in text
    code, said = status(exporter, "/livez")
    assert code == 200
    assert "not judged" in said


def test_a_textfile_is_replaced_as_a_whole_and_everybody_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "pdctl.prom"
    before = os.umask(0o077)
    try:
        for text in ("# HELP pdctl_up x\none\n", "# HELP pdctl_up x\n"):
            TextFile(path).write(text)
            assert path.read_text() == text
            assert stat.S_IMODE(path.stat().st_mode) == 0o644
            assert list(tmp_path.iterdir()) == [path]
    finally:
        os.umask(before)
    TextFile(path).remove()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_had_written_hinders_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "pdctl.prom"
    left = [tmp_path / f".pdctl.prom.{os.getpid()}.part", tmp_path / ".pdctl.prom.00ff00ff.1.part"]
    for one in left:
        one.write_text("# HELP")
    young = f".pdctl.prom.{os.getpid() + 1}.part"
    for kept in (young, ".other.prom.1.part"):
        (tmp_path / kept).write_text("# HELP")
    for one in (*left, tmp_path / ".other.prom.1.part"):
        os.utime(one, (1, 1))
    file = TextFile(path)
    left[0].write_text("of another container's process of this number")
    file.write("# HELP pdctl_up x\n")
    left[0].unlink()
    assert {one.name for one in tmp_path.iterdir()} == {"pdctl.prom", young, ".other.prom.1.part"}


@pytest.mark.parametrize("what", ["of somebody else", "a link", "a FIFO", "a directory", "another name"])
def test_what_is_not_its_own_is_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / ("pdctl.txt" if what == "another name" else "pdctl.prom")
    if what == "of somebody else":
        path.write_text("# HELP node_load1 x\n")
    elif what == "a link":
        (tmp_path / "there").write_text("# HELP pdctl_up x\n")
        path.symlink_to("there")
    elif what == "a FIFO":
        os.mkfifo(path)
    elif what == "a directory":
        path.mkdir()
    with pytest.raises(PdctlError) as caught:
        TextFile(path)
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--listen", "0.0.0.0:0"], 5, "--listen-open"),
        (["--listen", "9477"], 2, "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--once"], 2, "--once serves nothing"),
        (["--every", "1ms"], 2, "from 100ms to 1m"),
        (["--listen", "198.51.100.7:0", "--listen-open"], 2, "can't listen at"),
        (["--textfile", "/nosuch/pdctl.prom", "--once"], 2, "/nosuch"),
    ],
)
def test_what_can_not_be_is_said_in_a_line(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    env = {"PDCTL_RUN_DIR": str(tmp_path), "PDCTL_RECORD_DIR": str(tmp_path)}
    done = CliRunner().invoke(app, ["export", *words], env=env)
    assert done.exit_code == code
    assert said in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_what_is_due_moves_no_cursor_and_turns_no_text_around() -> None:
    exporter = Exporter(every_s=1, stall_s=30)
    seen = state("DIVERGED")
    exporter.take(msgspec.structs.replace(seen, groups=(msgspec.structs.replace(seen.groups[0], title="G\u202e\x9b"),)))
    code, said = status(exporter, "/livez")
    assert code == 503
    assert said.endswith("\n")
    assert said[:-1].isprintable()
