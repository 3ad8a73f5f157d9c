"""What a shell completes values with."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
import typer

from pdctl.cli import app
from pdctl.commands.completing import KINDS, values
from pdctl.probes.base import Option
from pdctl.probes.registry import PROBES
from pdctl.protocol import paths
from pdctl.protocol.paths import Registration, private_dir, write_private
from pdctl.targets import contexts
from tests.support.identities import identity


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Context:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PDCTL_RUN_DIR", str(tmp_path / "run"))
    return typer.Context(typer.main.get_command(app))


@pytest.mark.parametrize(
    ("kind", "begun", "some"),
    [
        ("finding", "PD10", {"PD101", "PD102"}),
        ("drill", "meta", {"metadata-gate"}),
        ("stage", "st", {"stuck", "stacks"}),
        ("queue", "decode", {"decode.transfer"}),
        ("schema", "pdctl.r", {"pdctl.ranks"}),
        ("policy", "", {"no-gate"}),
        ("level", "e", {"error"}),
    ],
)
def test_values_that_are_always_there(ctx: typer.Context, kind: str, begun: str, some: set[str]) -> None:
    found = values(kind)(ctx, begun)
    assert some <= set(found)
    assert all(one.startswith(begun) for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_is_nothing_or_it_can_not_be_read_nothing_is_completed(
    ctx: typer.Context, kind: str, tmp_path: Path
) -> None:
    assert values(kind)(ctx, "no such value") == []
    contexts_file = tmp_path / "XDG_CONFIG_HOME" / "pdctl" / "contexts.toml"
    contexts_file.parent.mkdir(parents=True)
    contexts_file.write_text("not toml [")
    assert values(kind)(ctx, "no such value") == []


def test_ranks_labs_and_contexts_of_this_host(ctx: typer.Context, tmp_path: Path) -> None:
    run = private_dir(tmp_path / "run")
    rank = identity(tp=1)
    name = paths.stem(rank.pid, rank.proc_start)
    write_private(run / f"{name}.json", msgspec.json.encode(Registration(protocol=1, identity=rank)))
    write_private(run / "broken.json", b"{")
    (run / "lab-mine").mkdir()
    (run / "lab-mine" / "lab.json").touch()
    contexts.add("prod", contexts.Context(run_dir=str(run)))
    assert values("rank")(ctx, "") == ["decode", "decode:dp0:pp0:tp1"]
    assert values("group")(ctx, "") == ["decode:dp0:pp0"]
    assert values("server")(ctx, "") == ["here:30001"]
    assert values("role")(ctx, "d") == ["decode"]
    assert values("lab")(ctx, "m") == ["mine"]
    assert values("context")(ctx, "") == ["prod"]


def test_options_of_probes_name_kinds_that_there_are() -> None:
    named = {
        one.values
        for entry in PROBES
        for hint in get_type_hints(entry.load().options, include_extras=True).values()
        for one in getattr(hint, "__metadata__", ())
        if isinstance(one, Option) and one.values
    }
    assert {"stage", "finding"} <= named <= set(KINDS)


@pytest.mark.parametrize("name", ["$(id)", r"\$(id)", "`id`", "a;id", "a b|id", 'a"', "a'b", "*", "a\nb", "a\x1b[2J"])
def test_names_that_a_shell_would_act_on_are_not_completed(ctx: typer.Context, tmp_path: Path, name: str) -> None:
    for lab in (name, "mine"):
        (tmp_path / "run" / f"lab-{lab}").mkdir(parents=True)
        (tmp_path / "run" / f"lab-{lab}" / "lab.json").touch()
    assert values("lab")(ctx, "") == ["mine"]
