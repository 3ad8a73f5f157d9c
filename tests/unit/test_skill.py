"""The skill for agents names commands, options, codes and documents that there are, and calls none that changes a cluster."""

from __future__ import annotations

import re
import shlex

from pdctl.protocol.errors import Exit
from pdctl.report.findings import catalogue
from tools.man_pages import HEADING
from tools.pages import ROOT

TEXT = (ROOT / "skills" / "pdctl" / "SKILL.md").read_text()
PARTS = HEADING.split((ROOT / "docs" / "commands.md").read_text())[1:]
HELP = dict(zip(PARTS[::2], PARTS[1::2], strict=True))
CHANGING = {"inject", "heal", "drill", "clean"}


def command_lines() -> list[list[str]]:
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    spans = re.findall(r"`(pdctl [^`\n]+)`", TEXT) + re.findall(r"^(pdctl [^\n|]+)", blocks, re.MULTILINE)
    return [shlex.split(span) for span in spans]


def test_each_command_and_option_is_there() -> None:
    lines = command_lines()
    assert len(lines) > 15
    for words in lines:
        name = " ".join(words[:3]) if " ".join(words[:3]) in HELP else " ".join(words[:2])
        assert name in HELP, words
        options = set(
            re.findall(
                r"(?<![\w-])-{1,2}[a-z][a-z-]*", " ".join(re.findall(r"^\* `(-[^`]+)`", HELP[name], re.MULTILINE))
            )
        )
        assert {word for word in words[2:] if re.match(r"--?[a-z]", word)} <= options, words


def test_options_that_are_named_alone_are_there() -> None:
    known = "\n".join(HELP.values())
    for option in re.findall(r"`(--[a-z-]+)`", TEXT):
        assert f"`{option}" in known, option


def test_it_runs_nothing_that_changes_a_cluster() -> None:
    assert not {words[1] for words in command_lines()} & CHANGING
    forbidden = TEXT.partition("## Not for you")[2].partition("\n## ")[0]
    assert all(f"`{command}`" in forbidden for command in CHANGING)


def test_codes_and_exit_codes_are_there() -> None:
    assert set(re.findall(r"PD\d{3}", TEXT)) <= set(catalogue())
    table = TEXT.partition("## Exit codes")[2].partition("\n\n## ")[0]
    told = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in cell.split(",")}
    assert told == {0, *(int(code) for code in Exit)}
