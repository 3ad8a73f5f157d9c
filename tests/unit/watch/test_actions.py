"""Actions take what they can: servers that hang, commands that do not end, and disks that are full hold up nobody."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pdctl.commands import watch
from pdctl.protocol.errors import PdctlError
from pdctl.report.findings import finding
from pdctl.targets.reach import Reach
from pdctl.watch import actions
from pdctl.watch.actions import Action, Exec, Webhook
from pdctl.watch.evidence import Evidence
from pdctl.watch.incidents import Change
from pdctl.watch.parts import Part
from tests.support.patience import patience, until

EVIL = "a\nrid`touch /tmp/x`$(id)\x1b[2J"


def change(kind: str = "began") -> Change:
    found = finding("PD101", EVIL, rooms=(1 << 63,))
    return Change(at_wall_ns=1, change=kind, incident=3, code="PD101", summary=EVIL, finding=found)


class Server:
    """A web server that answers with ``codes``, one after the other, and keeps what it was sent."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.bodies = list(codes), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.bodies.append((self.path, json.loads(body)))
                self.send_response(outer.codes.pop(0) if outer.codes else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/hook?key=secret"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*codes: int) -> Server:
        made.append(Server(*codes))
        return made[-1]

    yield start
    for one in made:
        one.http.shutdown()
        one.http.server_close()


def test_a_webhook_gets_the_change_as_json_and_again_where_it_failed(server: Callable[..., Server]) -> None:
    there, said = server(503, 500), []
    hook = Webhook(there.url, said.append, within_s=patience(5), again_s=(0.0, 0.0))
    hook.take(change())
    until("three tries", lambda: len(there.bodies) == 3)
    hook.close()
    path, body = there.bodies[-1]
    assert path == "/hook?key=secret"
    assert (body["schema"], body["change"], body["summary"]) == ("pdctl.watch.change", "began", EVIL)
    assert body["finding"]["rooms"] == [1 << 63]
    assert said == []


def test_a_webhook_that_refuses_is_said_once_and_its_address_is_not(server: Callable[..., Server]) -> None:
    there, said = server(404, 404, 200, 404), []
    hook = Webhook(there.url, said.append, again_s=(0.0,))
    for _ in range(4):
        hook.take(change())
    until("one try each", lambda: len(there.bodies) == 4)
    hook.close()
    assert said == ["--webhook: 127.0.0.1: it answered 404; changes are left out until it answers"] * 2
    assert "secret" not in said[0]


def test_a_webhook_that_hangs_blocks_nobody_and_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        said: list[str] = []
        hook = Webhook(f"http://127.0.0.1:{nobody.getsockname()[1]}/", said.append, within_s=0.3, again_s=())
        for _ in range(3 * actions.WAITING):
            hook.take(change())
        until("it is said", lambda: len(said) == 2)
        assert said[0].startswith(f"--webhook: {actions.WAITING} changes wait")
        assert "no answer" in said[1] or "changes are left out" in said[1]
        hook.close(0.1)
    assert not hook._thread.is_alive()


def test_a_server_that_answers_byte_by_byte_is_cut_off() -> None:
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            while not over.wait(0.02):
                try:
                    connection.send(b"H")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        said: list[str] = []
        hook = Webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/", said.append, within_s=0.3, again_s=())
        hook.take(change())
        until("it is given up", lambda: said)
        over.set()
        hook.close()


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "http://", "h:80", "http://me:pw@h/", "http://h/\x07", "http://h/a b", "http://h:99999999/"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Webhook(url, print)


def test_a_command_gets_the_change_on_its_standard_input_and_no_shell_sees_it(tmp_path: Path) -> None:
    said: list[str] = []
    run = Exec((sys.executable, "-c", f"open({str(tmp_path / 'x')!r}, 'a').write(input() + chr(10))"), said.append)
    run.take(change())
    run.take(change("over"))
    lines = until("both", lambda: got if len(got := _lines(tmp_path / "x")) == 2 else None)
    run.close()
    assert [json.loads(line)["change"] for line in lines] == ["began", "over"]
    assert json.loads(lines[0])["summary"] == EVIL
    assert said == []


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    said: list[str] = []
    script = (
        f"import os,time; os.fork(); open({str(tmp_path / 'pids')!r},'a').write(f'{{os.getpid()}} '); time.sleep(999)"
    )
    run = Exec((sys.executable, "-c", script), said.append, within_s=patience(1))
    run.take(change())
    until("it is ended", lambda: said)
    run.close()
    assert "was ended after" in said[0]
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    until("both are gone", lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_that_fails_or_is_not_there_is_said_once() -> None:
    said: list[str] = []
    for words in (("/no/such/command",), (sys.executable, "-c", "raise SystemExit(7)")):
        run = Exec(words, said.append)
        run.take(change())
        run.take(change())
        run.close(patience(10))
    assert said == [
        "--exec: /no/such/command can't be started: No such file or directory",
        f"--exec: {sys.executable} exited with 7",
    ]


def test_a_watch_that_ends_by_itself_completes_what_its_actions_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_END_S", 0.05)
    said: list[str] = []
    script = f"import time; time.sleep(1); open({str(tmp_path / 'x')!r}, 'a').write(input() + chr(10))"
    with ExitStack() as held:
        command = f'{sys.executable} -c "{script}"'
        [run] = watch._actions(held, threading.Event(), Reach(), said.append, "", command, "")
        run.take(change())
        run.take(change("over"))
    assert [json.loads(line)["change"] for line in _lines(tmp_path / "x")] == ["began", "over"]
    assert said == []


def test_a_signal_ends_what_would_have_been_completed() -> None:
    said: list[str] = []
    over = threading.Event()
    run = Exec((sys.executable, "-c", "import time; time.sleep(999)"), said.append, within_s=999)
    run.take(change())
    threading.Timer(0.2, over.set).start()
    run.close(999, over)
    assert said == [f"--exec: {sys.executable} was ended at the end of the watch"]


def test_all_that_waits_is_completed_though_no_more_could_wait() -> None:
    begun, may, seen = threading.Event(), threading.Event(), []

    class Slow(Action):
        name = "--slow"

        def act(self, change: Change) -> None:
            begun.set()
            may.wait()
            seen.append(change)

    one = Slow(lambda _: None)
    one.take(change())
    assert begun.wait(patience(10))
    for _ in range(2 * actions.WAITING):
        one.take(change())
    threading.Timer(0.2, may.set).start()
    one.close(patience(60))
    assert len(seen) == 1 + actions.WAITING
    assert not one._thread.is_alive()


def test_an_action_that_fails_goes_on() -> None:
    class Fails(Action):
        name = "--fails"

        def act(self, change: Change) -> None:
            seen.append(change)
            raise ZeroDivisionError("a defect")

    seen: list[Change] = []
    said: list[str] = []
    one = Fails(said.append)
    one.take(change())
    one.take(change())
    one.close(patience(10))
    assert len(seen) == 2
    assert said == ["--fails failed: ZeroDivisionError: a defect"]


def test_evidence_that_can_not_be_had_leaves_nothing_and_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    env = {"PDCTL_RUN_DIR": str(tmp_path / "run"), "PDCTL_RECORD_DIR": str(tmp_path / "rec")}
    folder = tmp_path / "kept"
    (folder / ".making-1-999999999").mkdir(parents=True)  # of a watch that was killed
    keeper = Evidence(folder, {**_environ(), **env}, said.append, within_s=patience(30))
    keeper.take(change())
    keeper.close(patience(60))
    assert said[0].startswith("no evidence of PD101 is kept: nothing could be had: trace.pdtrace: no ranks found in")
    assert list(folder.iterdir()) == []


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PDCTL_")}


def test_a_full_directory_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.watch.evidence.MOST", 1)
    kept = tmp_path / "20261130T015609Z-PD101-1"
    kept.mkdir()
    (kept / "finding.json").write_text("{}")
    said: list[str] = []
    keeper = Evidence(tmp_path, {}, said.append)
    keeper.take(change())
    keeper.close(patience(10))
    assert said == [f"no evidence of PD101 is kept: {tmp_path} has that of 1 alarms; move some away"]
    assert list(tmp_path.iterdir()) == [kept]


def test_a_place_that_can_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PdctlError, match="can't be used for evidence"):
        Evidence(tmp_path / "file" / "x", {}, print)


def test_evidence_that_the_end_cuts_off_says_so(tmp_path: Path) -> None:
    keeper = Evidence(tmp_path, {}, print)
    keeper.close(0.1)
    env = {"PDCTL_RUN_DIR": str(tmp_path / "run"), "PDCTL_RECORD_DIR": str(tmp_path / "rec")}
    part = Part(tmp_path / "part.json", ["watch"], {**_environ(), **env})  # it ends only when it is told to
    assert part.ended(patience(60), keeper._ending) == "not complete at the end of the watch"
    assert not part.file.exists()


def test_a_full_directory_is_said_though_many_changes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.watch.evidence.MOST", 0)
    monkeypatch.setattr(Evidence, "_run", lambda _: None)  # nothing is taken from the queue
    said: list[str] = []
    keeper = Evidence(tmp_path, {}, said.append)
    for _ in range(actions.WAITING + 1):
        keeper.take(change())
    keeper.act(change())
    assert [line.partition(":")[0] for line in said] == ["--on-finding record", "no evidence of PD101 is kept"]


def test_what_is_moved_away_while_it_is_counted_hides_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "20261130T015609Z-PD101-1"
    kept.mkdir()
    (kept / "finding.json").write_text("{}")
    (kept / "stacks.json").write_text("{}")
    lstat = Path.lstat

    def moved(path: Path) -> os.stat_result:
        if path.name == "stacks.json":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", moved)
    monkeypatch.setattr("pdctl.watch.evidence.MOST_BYTES", 2)
    keeper = Evidence(tmp_path, {}, print)
    keeper.close(0.1)
    assert "has 0 MiB" in keeper._full()


def test_a_directory_that_can_not_be_looked_at_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    keeper = Evidence(tmp_path / "gone", {}, said.append)
    (tmp_path / "gone").rmdir()
    keeper.take(change())
    keeper.close(patience(10))
    assert said == ["no evidence of PD101 is kept: No such file or directory"]
