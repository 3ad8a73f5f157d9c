"""Drills as a user runs them: HOLDS with the fix, BROKEN without, INCONCLUSIVE when nothing was shown."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pdctl.inject.drill.files import built_in, load
from tests.support.labs import Labs

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]

QUICK = ("metadata-gate", "dp-routing")
ALL = os.environ.get("PDCTL_TEST_DRILLS") == "all"
VERDICTS = {"HOLDS": 0, "BROKEN": 1, "INCONCLUSIVE": 3}


def drill(labs: Labs, *arguments: object) -> dict:
    """Run a drill, hold its exit code against its verdict, judge its journal again, and return what it printed."""
    done = labs.cli("drill", "run", *arguments, "-o", "json", code=None)
    told = json.loads(done.stdout)
    assert done.returncode == VERDICTS[told["verdict"]], done.stderr
    again = labs.cli("drill", "judge", told["journal"], "-o", "json", code=done.returncode)
    assert json.loads(again.stdout) == told
    return told


@pytest.mark.parametrize("name", built_in() if ALL else QUICK)
def test_holds_with_the_fix_and_breaks_without(labs: Labs, name: str) -> None:
    told = drill(labs, name, "--lab")
    assert told["verdict"] == "HOLDS", told
    spec = load(built_in()[name]).lab
    assert spec is not None
    if spec.control is not None:
        told = drill(labs, name, "--lab", "--control")
        assert (told["verdict"], told["control"]) == ("BROKEN", True), told


def changed(labs: Labs, name: str, *changes: tuple[str, str]) -> Path:
    """Return a drill file like ``name``'s with texts replaced."""
    text = built_in()[name].read_text()
    for old, new in changes:
        text, found = re.subn(old, new, text)
        assert found, old
    path = labs.folder / f"{name}.yaml"
    path.write_text(text)
    return path


NEVER = {
    "metadata-gate": ("  delay: 2s", "  delay: 2s\n  room: 5"),
    "gpu-metadata": ("  delay: 1s", "  delay: 1s\n  room: 5"),
    "receiver-lifecycle": ("  kind: hide-registration", "  kind: hide-registration\n  room: 5"),
    "dp-routing": (r"room: \d+", "room: 8"),
    "pp-orphan": (r"abort_after: \w+", "abort_after: 10m"),
}


@pytest.mark.parametrize("name", NEVER if ALL else QUICK)
def test_what_never_fires_is_inconclusive(labs: Labs, name: str) -> None:
    told = drill(labs, changed(labs, name, NEVER[name]), "--lab")
    assert told["verdict"] == "INCONCLUSIVE", told
    assert "nothing was shown" in told["reason"]


COMMAND = """
name: own-command
about: what an operator's own command breaks
load: {{command: [sh, -c, 'test $PDCTL_DRILL_PLAIN = 1 || {harm}']}}
for: 2s
settle: 3s
expect: {{requests: end}}
lab: {{prefill: tp=1, decode: tp=1}}
"""


@pytest.mark.parametrize(
    ("harm", "verdict"), [("exit 0", "HOLDS"), ("exec sleep 600", "BROKEN"), ("exit 3", "INCONCLUSIVE")]
)
def test_a_command_is_the_cause(labs: Labs, harm: str, verdict: str) -> None:
    path = labs.folder / "own.yaml"
    path.write_text(COMMAND.format(harm=harm))
    told = drill(labs, path, "--lab")
    assert told["verdict"] == verdict, told


def test_a_killed_drill_leaves_no_lab_and_an_inconclusive_journal(labs: Labs) -> None:
    journal = labs.folder / "j.jsonl"
    command = [sys.executable, "-m", "pdctl.cli", "drill", "run", "metadata-gate", "--lab", "--journal", str(journal)]
    run = subprocess.Popen(command, env=labs.env, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    assert any("during" in line for line in run.stderr)
    run.kill()
    run.wait()
    run.stderr.close()
    told = json.loads(labs.cli("drill", "judge", journal, "-o", "json", code=3).stdout)
    assert "the journal ends in during" in told["reason"]


def test_no_ranks_and_no_such_drill(labs: Labs) -> None:
    assert "no ranks found" in labs.cli("drill", "run", "metadata-gate", code=4).stderr
    assert "there is no drill 'nope'" in labs.cli("drill", "run", "nope", "--lab", code=2).stderr
    bad = changed(labs, "metadata-gate", ("delay: 2s", "dely: 2s"))
    assert re.search(r"line \d+: fault.dely", labs.cli("drill", "run", bad, "--lab", code=2).stderr)


def test_servers_that_can_not_be_used(labs: Labs) -> None:
    labs.up("--prefill", "tp=1", "--decode", "tp=1")
    journal = labs.folder / "j.jsonl"

    def refused(code: int, *options: str, name: str = "dp-routing") -> str:
        journal.unlink(missing_ok=True)
        return labs.cli("drill", "run", name, "--journal", journal, *options, code=code).stderr

    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    both = ("--prefill-url", nobody, "--decode-url", nobody)
    assert f"the prefill server at {nobody} does not answer: Connection refused" in refused(4, *both)
    assert "--decode-url is missing" in refused(2, "--prefill-url", nobody)
    assert "--prefill-url: ftp:// is neither" in refused(2, "--prefill-url", "ftp://x", "--decode-url", nobody)
    assert "--lab starts servers of its own" in refused(2, "--lab", *both)
    assert "sends no requests of its own" in refused(2, "--load", "none", *both, name="metadata-gate")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        assert f"{url} is no SGLang server" in refused(2, "--prefill-url", url, "--decode-url", url)
        other.shutdown()
