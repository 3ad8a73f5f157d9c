"""``pdctl bundle`` and ``pdctl report`` on a lab that hangs: what is in the file, and what is not."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.labs import Labs
from tests.support.patience import patience, until

pytestmark = pytest.mark.system
TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


def rows(file: Path) -> dict[str, dict[str, Any]]:
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return {row["name"]: row for row in json.loads(archive.read("manifest.json"))["collectors"]}


def test_a_hang_in_one_file(labs: Labs) -> None:
    labs.env["PDCTL_RECORD_SIZE"] = str(256 * 1024)
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata(delay="1s")
    threading.Thread(target=lambda: lab.load(requests=1, seconds=3), daemon=True).start()
    until("a landing on decode tp1", lambda: lab.events(TP1, 13))
    names = {event.text for event in lab.events(TP0, 1)} | {socket.gethostname()}
    log = labs.folder / "engine.log"
    [rid] = names - {socket.gethostname()}
    log.write_text(f"api_key='sk-1', rid='{rid}' on {socket.gethostname()}\n")
    planned = labs.cli("bundle", "--dry-run", "--format", "json", "-o", labs.folder / "none.zip")
    assert {one["status"] for one in json.loads(planned.stdout)["collectors"]} == {"would be taken"}

    file = labs.folder / "ticket.zip"
    labs.cli("bundle", "-o", file, "--logs", log, "--logs", labs.folder / "none.log", code=3)
    had = rows(file)
    assert {name for name, row in had.items() if row["status"] == "missing"} == {"log-2"}
    assert had["log-2"]["reason"] == "none.log: No such file or directory"
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name) for name in archive.namelist() if not name.startswith("recordings/")}
    for text in texts.values():
        assert not [name for name in names if name.encode() in text]
    assert b"sk-1" not in texts["logs/1.log"]
    check = json.loads(texts["documents/check.json"])
    [found] = [one for one in check["findings"] if one["code"] == "PD101"]
    [room] = found["rooms"]
    [story] = json.loads(texts[f"stories/story-{room}.json"])["stories"]
    assert set(story["rids"]) <= {word.strip("'") for word in texts["logs/1.log"].decode().replace("=", " ").split()}
    assert "PD101" in labs.cli("diff-queues", "--from", file, code=1).stdout

    page = labs.folder / "report.html"
    labs.cli("report", file, "-o", page)
    text = page.read_text()
    assert text.index("Something is wrong.") < text.index("the ranks part at round")
    assert "asked while they ran" in text
    brief = labs.cli("report", file, "--markdown").stdout.splitlines()
    assert brief[0].startswith("**pdctl: error PD")
    assert len(brief) <= 40

    early = labs.folder / "early.zip"
    process = labs.start("bundle", "-o", early)
    until("its folder", lambda: list(Path(tempfile.gettempdir()).glob(f"pdctl-trace-*-{process.pid}-*")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=patience(60))
    assert process.returncode == 3
    assert {row["status"] for row in rows(early).values()} <= {"kept", "missing"}
    assert "at Ctrl-C" in rows(early)["check"]["reason"]
    assert not list(Path(tempfile.gettempdir()).glob(f"pdctl-trace-*-{process.pid}-*"))
    assert early.stat().st_mode & 0o777 == 0o600
