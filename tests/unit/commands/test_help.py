"""The help of pdctl: its sections, one screen, and summaries that are whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from pdctl.cli import COMMANDS, SECTIONS, app
from pdctl.probes.registry import GROUPS, abouts

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "commands.md"
GROUP_COMMANDS = (*GROUPS, "drill", "context", "keys", "lab")
LINES = 57
"""What one screen has."""


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0
    return done.stdout


def test_the_help_fits_one_screen_and_says_where_to_begin() -> None:
    lines = help_of().splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "Run pdctl check, then pdctl diff-queues. pdctl record keeps" in text


def test_every_command_is_in_one_section_on_one_line() -> None:
    lines = help_of().splitlines()
    headings = [line for line in lines if re.fullmatch(r"[A-Z]\w+:", line)]
    assert headings == ["Options:", *(f"{section}:" for section in SECTIONS)]
    listed = [line.split()[0] for line in lines[lines.index("Look:") :] if line.startswith("  ")]
    assert listed == [*abouts(), *COMMANDS]
    assert listed[0] == "check"


@pytest.mark.parametrize("name", GROUP_COMMANDS)
def test_the_list_of_subcommands_has_whole_sentences(name: str) -> None:
    lines = help_of(name).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"  [a-z]+ +[A-Z].*[^.]\.", line), line


def test_the_reference_has_whole_sentences() -> None:
    lists = re.findall(r"^\*\*Commands\*\*:\n\n((?:\* .*\n)+)", REFERENCE.read_text(), re.MULTILINE)
    assert len(lists) == 1 + len(GROUP_COMMANDS)
    for line in "".join(lists).splitlines():
        assert re.fullmatch(r"\* `[a-z-]+`: [A-Z].*[^.]\.", line), line


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    yield path, command
    if path and path[0] not in GROUP_COMMANDS:
        return
    context = typer.Context(command)
    for name in command.list_commands(context) if len(path) < 2 else ():
        yield from commands(command.get_command(context, name), *path, name)


def test_no_word_of_a_help_is_broken_and_no_option_shows_a_type_of_python() -> None:
    broken, types, seen = [], [], 0
    for path, command in commands(typer.main.get_command(app)):
        text = help_of(*path)
        printed = set(text.split())
        types += re.findall(r"^  --?[a-z].* <(?:int|float|str|Path).*>", text, re.MULTILINE)
        for param in command.params if path else ():
            words = re.sub("[\x00-\x1f]", " ", getattr(param, "help", None) or "").split()
            broken += [(path, word) for word in words if word not in printed]
            seen += len(words)
    assert (broken, types) == ([], [])
    assert seen > 1000
