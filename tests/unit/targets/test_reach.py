"""Where a command looks for ranks: what is given wins over the environment, and that over the context; no global is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets import contexts
from pdctl.targets.pods import PodQuery
from pdctl.targets.reach import Reach


def test_what_is_given_wins_over_the_environment_and_that_over_the_context(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    far = contexts.Context(run_dir="/of/context", store="context:1", key="carol", inject="never")
    contexts.add("far", far, home)
    reach = Reach("far", endpoints=("tcp://a:1", "tcp://b:2"), key="alice", record_dir=Path("here"))
    env = reach.environment(home | {"PDCTL_KEY": "bob", "PDCTL_STORE": "environment:1", "PDCTL_ENDPOINT": "tcp://c:3"})
    assert (env["PDCTL_KEY"], env["PDCTL_STORE"], env["PDCTL_RUN_DIR"]) == ("alice", "environment:1", "/of/context")
    assert env["PDCTL_ENDPOINT"] == "tcp://a:1 tcp://b:2"
    assert env["PDCTL_RECORD_DIR"] == str(Path.cwd() / "here")
    with pytest.raises(PdctlError, match="inject = ") as refused:
        reach.forbid_faults(home)
    assert refused.value.code is Exit.REFUSED
    Reach().forbid_faults(home)


def test_commands_that_are_started_look_at_the_same_ranks_or_are_not_started() -> None:
    env = Reach(hosts=("gpu1", "@racks"), run_dir=Path("run")).for_commands({})
    assert env["PDCTL_HOSTS"] == f"gpu1 @{Path.cwd() / 'racks'}"
    assert env["PDCTL_RUN_DIR"] == str(Path.cwd() / "run")
    with pytest.raises(PdctlError, match="do not reach pods") as refused:
        Reach(pods=PodQuery(namespace="prod")).for_commands({})
    assert refused.value.code is Exit.USAGE


def test_options_before_the_command_reach_it_and_change_no_environment(tmp_path: Path) -> None:
    before = dict(os.environ)
    words = ["--context", "nowhere", "--store", "h:1", "--key", "k", "--server-key", "s", "--endpoint", "tcp://h:1"]
    for command in (["ranks"], ["record", str(tmp_path / "f.pdtrace")], ["clean"], ["heal", "--all"]):
        done = CliRunner().invoke(app, [*words, *command], env={"XDG_CONFIG_HOME": str(tmp_path)})
        assert (done.exit_code, "no context nowhere is saved" in done.output) == (2, True), command
    assert dict(os.environ) == before
