"""Wrong usage: what is wrong on one line, what to write instead on the next; where an option or a command belongs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pdctl import cli

NO_OPTION, NO_COMMAND = "No such option: ", "No such command: "


@pytest.mark.parametrize(
    ("line", "wrong", "step"),
    [
        ("dif-queues", f"{NO_COMMAND}dif-queues", "Did you mean pdctl diff-queues?"),
        ("metadata", f"{NO_COMMAND}metadata", "Did you mean pdctl dump metadata?"),
        ("dump metdata", f"{NO_COMMAND}metdata", "Did you mean pdctl dump metadata?"),
        ("lab ranks", f"{NO_COMMAND}ranks", "Did you mean pdctl ranks?"),
        ("zzz", f"{NO_COMMAND}zzz", "pdctl --help lists the commands."),
        ("check --onyl ranks", f"{NO_OPTION}--onyl", "Did you mean --only? pdctl check --help lists the options."),
        ("ranks --trigger x", f"{NO_OPTION}--trigger", "It is an option of pdctl record."),
        ("replay x --policy y", f"{NO_OPTION}--policy", "It is an option of pdctl explore."),
        ("replay x --seed 3", f"{NO_OPTION}--seed", "Did you mean --queue? It is an option of pdctl inject, "),
        ("ranks --store x", f"{NO_OPTION}--store", "It goes before the command: pdctl --store HOST:PORT|env ranks."),
        ("--rank decode check", f"{NO_OPTION}--rank", "It goes after the command: "),
        ("attach seven", "PID: 'seven' is no whole number", "pdctl attach --help shows how to use it."),
        ("diff-queues --confirm 0", "--confirm: 0 is under the limit, 1", "pdctl diff-queues --help"),
        ("ranks -o xml", "-o / --output: 'xml' is not one of ", "pdctl ranks --help"),
        ("attach --all 7", "--all means every scheduler process: give PIDs or --all, not both", "pdctl attach --help"),
        ("story", "Missing argument 'ROOM|RID'", "pdctl story --help shows how to use it."),
        ("help zzz", f"{NO_COMMAND}zzz", "pdctl --help lists the commands."),
    ],
)
def test_one_line_for_what_is_wrong_and_one_for_what_to_do(
    line: str, wrong: str, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pdctl", *line.split()])
    assert cli._run() == 2
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert printed.out == ""
    assert first.startswith(f"pdctl: {wrong}")
    assert second.startswith("  Next: ")
    assert step in second


def test_help_of_a_command_is_its_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for line in ("help dump metadata", "dump metadata --help", "help", "--help"):
        monkeypatch.setattr(sys, "argv", ["pdctl", *line.split()])
        assert cli._run() == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


@pytest.mark.parametrize(
    "options",
    [
        ("--rank", "nonsense"),
        ("--rank", "decode:tp1:tp2"),
        ("--group", "nonsense"),
        ("--role", "router"),
        ("--server", ""),
        ("--run-dir", ""),
    ],
)
@pytest.mark.parametrize("command", ["watch", "top", "export", "check --watch"])
def test_a_command_that_looks_again_and_again_has_its_options_checked_before_it_looks(
    command: str, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def looks(*_: object, **__: object) -> None:
        raise AssertionError("it looks")

    monkeypatch.setattr("pdctl.watch.eye.Eye.__init__", looks)
    monkeypatch.setattr("pdctl.probes.run.find", looks)
    monkeypatch.setattr(sys, "argv", ["pdctl", *command.split(), *options])
    assert cli._run() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert 1 <= len(printed.err.splitlines()) <= 2


@pytest.mark.parametrize(
    "wrong", [("--on-finding", "there"), ("--exec", '"'), ("--exec", " "), ("--webhook", "ftp://x")], ids=" ".join
)
def test_a_watch_has_what_it_shall_do_checked_before_it_looks(
    wrong: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def looks(*_: object, **__: object) -> None:
        raise AssertionError("it looks")

    monkeypatch.setattr("pdctl.watch.eye.Eye.__init__", looks)
    monkeypatch.setattr(sys, "argv", ["pdctl", "watch", *wrong])
    assert cli._run() == 2
    assert wrong[0] in capsys.readouterr().err


INTERRUPTED = """
import os, runpy, signal, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
sys.argv = ["pdctl", "ranks"]
runpy.run_module("pdctl", run_name="__main__")
"""


def test_an_interrupt_while_modules_are_loaded_is_quiet() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
