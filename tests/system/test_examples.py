"""Every example of every help: what can be run here is run, on traces or on one lab; what can't is parsed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer.core
from typer.testing import CliRunner

from pdctl.cli import COMMANDS, app
from pdctl.probes.registry import PROBES
from tests.support.labs import Labs

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "data" / "sglang-0.5.12.post1-c1.pdtrace"
DRILL = ROOT / "pdctl" / "drills" / "metadata-gate.yaml"

PARSED = {
    "pdctl record hang.pdtrace --for 10m --trigger diverged": "it waits for ranks that diverge, 10 minutes at most",
    "pdctl drill run metadata-gate --lab": "it starts a lab of its own; test_drills.py runs drills so",
    "pdctl attach --all": "it reads every engine of this machine; test_outside.py attaches to a process of its own",
    "pdctl attach 4711 --inject-agent": "no process of the test has this pid; test_inject_agent.py injects agents",
    "pdctl run -- python -m sglang.launch_server --model-path MODEL": "the process of the test would become an engine",
    "pdctl run -- ./start-decode.sh --port 30001": "the process of the test would become an engine",
    "pdctl preflight --prefill-url http://p:30000 --decode-url http://d:30000": "a lab has no HTTP of SGLang's",
    "pdctl story RID --logs router.log --logs decode.log": "no router of the test writes a log; test_story.py has some",
    "pdctl self-test --engine": "no SGLang is installed beside the tests; test_sglang_survey.py has sources of its own",
    "pdctl self-test --engine --source DIR": "no SGLang is installed beside the tests",
    "pdctl watch --on-finding record=/var/lib/pdctl": "it lasts; test_watch.py watches",
    "pdctl watch --for 10m --until-finding -o jsonl": "it waits for an alarm, 10 minutes at most",
    "pdctl top": "it lasts; test_repeated_looks.py has it on a terminal",
    "pdctl top --plain --every 5s --for 1m": "it lasts; test_repeated_looks.py reads what it prints",
    "pdctl export": "it lasts; test_export.py scrapes it",
    "pdctl export --textfile /var/lib/prometheus/node-exporter/pdctl.prom": "it lasts, and this directory is node-exporter's",
    "pdctl bisect incident.pdtrace --engine 0.5.12.post1 --engine 0.5.13.post1": "it downloads; test_bisect.py runs stand-ins",
    "pdctl bisect incident.pdtrace --engine ~/sglang/python --python bin/python": "no SGLang is beside the tests",
    "pdctl demo": "it starts labs of its own; test_lab_demo.py runs it",
    "pdctl demo --timeout 3m": "it starts labs of its own; test_lab_demo.py runs it",
    "pdctl lab up": "the shared lab is up already, with --owner",
    "pdctl lab up --prefills 2 --step prefill=12s --without gate": "one lab is enough; test_lab_servers.py starts others",
    "pdctl lab crash 'decode dp0 pp0 tp0' --name two": "there is one lab",
    "pdctl lab down --name two": "there is one lab",
}
"""Examples that can't be run here, and why."""

OFFLINE = ("explain", "schema", "keys", "context", "replay", "explore", "drill list", "drill show")
"""Commands that ask no rank. So do all others with --from."""

BEFORE = {"keys": "pdctl keys new bob"}
"""What the examples of a command rest on."""

LAST = "pdctl lab down"


def examples() -> Iterator[str]:
    """Yield the examples of all probes, then those of all other commands."""
    for entry in PROBES:
        yield from entry.load().examples
    for module, *_ in COMMANDS.values():
        given = import_module(f"pdctl.commands.{module}").EXAMPLES
        for lines in given.values() if isinstance(given, dict) else (given,):
            yield from lines


def offline(line: str) -> bool:
    return " --from " in line or any(line.startswith(f"pdctl {command}") for command in OFFLINE)


EVERY = tuple(examples())
STORED = tuple(line for line in EVERY if line not in PARSED and offline(line))
LIVE = tuple(line for line in EVERY if line not in PARSED and not offline(line) and line != LAST)
DIVERGES = {
    "pdctl diff-queues --from incident.pdtrace",
    "pdctl replay incident.pdtrace",
    "pdctl explore incident.pdtrace --policy no-gate",
    "pdctl explore --model ranks=2,requests=2,rounds=3",
    "pdctl lab load -n 1 --rid a-request --to decode --give-up 3s",  # a request that does not complete
}
"""Examples that find ranks that diverge, or a request that does not complete, and exit with 1. All others exit with 0."""


def invoke(line: str) -> tuple[int, str]:
    """Run a command line in this process; returns its exit code, and all that it wrote."""
    program, *words = shlex.split(line)
    assert program == "pdctl"
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


def test_each_command_has_two_and_its_help_ends_with_them() -> None:
    assert len(set(EVERY)) == len(EVERY)
    names = [entry.command for entry in PROBES]
    for name, (module, *_) in COMMANDS.items():
        given = import_module(f"pdctl.commands.{module}").EXAMPLES
        names += [f"{name} {sub}" for sub in given] if isinstance(given, dict) else [name]
    assert len(EVERY) == 2 * len(names)
    for name, pair in zip(names, zip(EVERY[::2], EVERY[1::2], strict=True), strict=True):
        assert all(line.startswith(f"pdctl {name}") for line in pair)
        code, text = invoke(f"pdctl {name} --help")
        assert code == 0
        assert text.endswith("\n  Examples:\n    {}\n    {}\n".format(*pair))
    assert PARSED.keys() <= set(EVERY)
    assert max(map(len, EVERY)) <= 76


@pytest.mark.parametrize("line", EVERY)
def test_its_options_exist_and_fit(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.core.TyperCommand, "invoke", lambda _self, ctx: ran.append(ctx.command_path))
    ran: list[str] = []
    assert invoke(line) == (0, "")
    assert ran


@pytest.mark.parametrize("command", dict.fromkeys(line.split()[1] for line in STORED))
def test_what_needs_no_rank_runs(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "PDCTL_RUN_DIR", "PDCTL_RECORD_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    shutil.copy(TRACE, "incident.pdtrace")
    shutil.copy(DRILL, "my-drill.yaml")
    if command in BEFORE:
        assert invoke(BEFORE[command])[0] == 0
    for line in STORED:
        if line.split()[1] == command:
            code, text = invoke(line)
            assert (line, code) == (line, 1 if line in DIVERGES else 0), text


def test_what_asks_ranks_runs_on_a_lab(labs: Labs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in labs.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for name in ("prefill.log", "decode.log"):
        Path(name).write_text("The server is fired up and ready to roll!\n")
    lab = labs.up()
    lab.load(requests=4, room=4711)
    for line in (*LIVE, LAST):
        code, text = invoke(line)
        assert (line, code) == (line, 1 if line in DIVERGES else 0), text
