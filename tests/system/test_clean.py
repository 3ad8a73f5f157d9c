"""``pdctl clean``: what ended ranks left goes, what is in use stays, and so does the evidence."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from pdctl.targets import cleanup
from pdctl.targets.places import parse_places
from tests.support.labs import Labs, end_process
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900, method="signal")]

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


def clean(labs: Labs, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(labs.cli("clean", *options, "-o", "json").stdout)
    return document


def went(document: dict[str, Any]) -> dict[str, str]:
    return {Path(row["path"]).name: row["went"] for row in document["files"]}


def test_only_what_nobody_uses_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Labs() as labs:
        lab = labs.up()
        assert clean(labs)["files"] == []
        assert labs.cli("clean").stdout.strip() == "nothing is left of ranks that have ended"
        process = lab.process(TP1)
        name = f"{process.pid}-{process.start}"
        end_process(process)
        until("the death of the process", lambda: not process.alive)
        (labs.folder / "run" / f".{name}.json.{process.pid}.part").write_bytes(b"{")
        (labs.folder / "run" / f"{name}.stacks").write_text("File where it was asked\n")
        live = lab.process(TP0)
        foreign = labs.folder / "run" / "notes.json"
        foreign.write_text("somebody's")
        document = clean(labs, "--dry-run")
        expected = {
            f"{name}.json": "would go",
            f"{name}.sock": "would go",
            f"{name}.stacks": "would go",
            f".{name}.json.{process.pid}.part": "would go",
        }
        assert {**expected, f"{name}.pdrec": "kept"}.items() <= went(document).items()
        assert not any(file.startswith(f"{live.pid}-") for file in went(document)) or not live.alive
        assert (labs.folder / "run" / f"{name}.sock").exists()
        document = clean(labs)
        assert {went(document)[file] for file in expected} == {"removed"}
        [kept] = [row for row in document["files"] if row["path"].endswith(f"{name}.pdrec")]
        assert "written to" in kept["why"] or "newest start" in kept["why"]
        assert {row["kind"] for row in document["files"] if row["path"].endswith(".stacks")} == {"stacks"}
        assert not (labs.folder / "run" / f"{name}.sock").exists()
        assert foreign.exists()
        # The recording alone still tells that there was such a rank, and how it ended.
        rows = json.loads(labs.cli("ranks", "-o", "json", code=None).stdout)["ranks"]
        assert {row["rank"]: row["state"] for row in rows}[TP1] == "dead"
        monkeypatch.setattr(cleanup, "RECENT_S", 0.0)  # it was killed a moment ago
        env = labs.env
        [last] = [one for one in cleanup.leftovers(parse_places(env), every=True) if one.path.name == f"{name}.pdrec"]
        assert not last.kept
        assert dict(cleanup.remove([last])) == {last: ""}
        assert not last.path.exists()


def test_a_recording_written_a_moment_ago_stays_and_is_said_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "RECENT_S", 3600.0)  # however busy the machine is
    with Labs() as labs:
        names = killed(labs)
        for every, then in ((True, "it may go when that is 3600 s ago, in "), (False, "--all removes it when that is")):
            found = {one.path.name: one.kept for one in cleanup.leftovers(parse_places(labs.env), every=every)}
            assert all(then in found[name] for name in names), found


def accepted(server: socket.socket) -> int:
    """Return how many connections wait to be accepted, and take them."""
    server.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_ranks_elsewhere_are_not_waited_for() -> None:
    """An endpoint that accepts and never answers is not even connected to."""
    with Labs() as labs, socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        seen = labs.cli("--endpoint", f"tcp://127.0.0.1:{port}", "ranks", "--rank-timeout", "1", code=4)
        assert accepted(mute) > 0, seen
        where = ("--endpoint", f"tcp://127.0.0.1:{port}", "--store", f"127.0.0.1:{port}")
        assert labs.cli(*where, "clean").stdout.strip() == "nothing is left of ranks that have ended"
        assert accepted(mute) == 0


def killed(labs: Labs) -> set[str]:
    """Start a lab and kill all of it; return its recordings."""
    before = {path.name for path in (labs.folder / "rec").glob("*.pdrec")}
    lab = labs.up()
    for process in lab.processes:
        end_process(process)
    until("the end of all processes of the lab", lambda: not lab.left())
    return {path.name for path in (labs.folder / "rec").glob("*.pdrec")} - before


def test_recordings_of_an_earlier_start_go_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "RECENT_S", 0.0)
    with Labs() as labs:
        first = killed(labs)
        aside = {name: (labs.folder / "rec" / name).read_bytes() for name in first}
        second = killed(labs)
        for name, data in aside.items():  # a lab clears away what its own earlier start left; an engine does not
            (labs.folder / "rec" / name).write_bytes(data)
        assert len(first) == len(second) == 3
        found = {one.path.name: one for one in cleanup.leftovers(parse_places(labs.env)) if one.kind == "recording"}
        assert {name for name, one in found.items() if not one.kept} == first
        assert {name for name, one in found.items() if "newest start" in one.kept} == second


def test_a_directory_that_others_can_write_is_refused() -> None:
    with Labs() as labs:
        (labs.folder / "run").mkdir(mode=0o777)
        (labs.folder / "run").chmod(0o777)
        done = labs.cli("clean", code=4)
        assert "is open to others" in done.stderr
