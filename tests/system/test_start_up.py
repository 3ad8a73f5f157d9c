"""``pdctl --help`` and ``pdctl diff-queues`` start light: no torch, no pandas; help needs no rich either."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pdctl.commands
from pdctl.cli import COMMANDS, HIDDEN
from pdctl.probes.registry import PROBES, abouts

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from pdctl.cli import app
try:
    app({args!r})
except SystemExit:
    pass
print(sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""


def loaded(tmp_path: Path, *args: str) -> set[str]:
    """Return the top-level modules in a process after ``pdctl ARGS``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(args=list(args))],
        cwd=ROOT,
        env={"PDCTL_RUN_DIR": str(tmp_path / "run"), "PDCTL_RECORD_DIR": str(tmp_path / "record")},
        capture_output=True,
        text=True,
        check=True,
    )
    names: set[str] = set(eval(done.stderr.splitlines()[-1]))
    return names


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["ranks", "--help"], ["diff-queues", "--help"]])
def test_help_loads_nothing_heavy(tmp_path: Path, args: list[str]) -> None:
    assert loaded(tmp_path, *args).isdisjoint({"torch", "pandas", "numpy", "zmq", "rich", "yaml"})


def test_the_list_of_commands_imports_no_probe() -> None:
    program = (
        "import sys\nfrom pdctl.cli import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()
    there = {f"pdctl.probes.{entry.where.partition(':')[0]}" for entry in PROBES}
    assert "pdctl.probes.registry" in names
    assert there.isdisjoint(names)


@pytest.mark.parametrize("args", [["ranks"], ["diff-queues"]])
def test_commands_for_a_hang_load_neither_torch_nor_pandas(tmp_path: Path, args: list[str]) -> None:
    assert loaded(tmp_path, *args).isdisjoint({"torch", "pandas"})


def test_an_agent_loads_only_what_a_rank_has() -> None:
    program = "import sys; before = set(sys.modules); import pdctl.agent.core, pdctl.agent.server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names.isdisjoint({"torch", "typer", "click", "rich", "pandas", "yaml"})


def test_every_command_there_is_can_be_called_and_says_what_it_does() -> None:
    modules = [module.name for module in pkgutil.iter_modules(pdctl.commands.__path__)]
    for module in modules:
        loaded = import_module(f"pdctl.commands.{module}")
        is_command = any(hasattr(loaded, name) for name in ("app", "command", module))
        assert len([name for name, (place, *_) in {**COMMANDS, **HIDDEN}.items() if place == module]) == is_command, (
            module
        )
    for name in (*abouts(), *COMMANDS, *HIDDEN):
        command = [sys.executable, "-m", "pdctl.cli", name, "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, name
        assert len(done.stdout.splitlines()) > 4, name
