"""The commands of the page's situations are commands of this pdctl."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest
import typer

from pdctl.cli import app
from tests.support.cases import Line, situations

LINES = sorted({line.command for blocks in situations().values() for block in blocks for line in block})


@pytest.mark.parametrize("command", LINES)
def test_a_command_of_a_situation_is_understood(command: str) -> None:
    group: Any = typer.main.get_command(app)
    parts = shlex.split(command)
    with click.Context(group) as context:
        while isinstance(group, click.Group) or hasattr(group, "get_command"):
            group = group.get_command(context, parts.pop(0))
        group.make_context(command, parts, parent=context)


def test_a_situation_starts_a_lab_and_has_one_twin_at_most() -> None:
    found = situations()
    assert len(found) > 15
    for name, blocks in found.items():
        assert 1 <= len(blocks) <= 2, name
        for block in blocks:
            assert block[0].command.startswith("lab up"), name
            assert not block[0].background


def test_lines_in_the_background_are_told() -> None:
    page = "## Situations to make\n\n### A\n\n```\n$ pdctl lab up\n$ pdctl lab load &\n```\n\n## Else\n"
    assert situations(page) == {"A": [[Line("lab up", False), Line("lab load", True)]]}
