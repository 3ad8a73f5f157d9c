"""Keeps the documentation of commands in step with the commands.

``python -m tools.gen_docs`` writes docs/commands.md from the Typer application, and the table of faults in docs/safety.md
from their rows. With ``--check`` it writes nothing and fails if one of them is stale, or if README.md or a page of docs/
shows a command line whose command does not exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pdctl.faults.kinds import KINDS, Kind

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "commands.md"
SAFETY = ROOT / "docs" / "safety.md"
HEADER = "<!-- Written by `make docs` from the commands themselves. -->\n\n"
#: What stands around the table of faults.
FAULTS = re.compile(r"(<!-- Faults: written by `make docs`[^\n]*\n\n).*?(\n<!-- End of faults\. -->)", re.DOTALL)
#: A line that a reader would type: in a code block, perhaps after a prompt or within indentation.
COMMAND_LINE = re.compile(r"^\s*(?:\$ )?pdctl +(?P<command>[a-z][a-z-]*)", re.MULTILINE)
#: What a help ends with, as :mod:`pdctl.commands.examples` writes it.
EXAMPLES = re.compile(r"\x08\nExamples:\n((?:  pdctl .*(?:\n|\Z))+)")
CODE_BLOCK = re.compile(r"^```.*?$(.*?)^```", re.MULTILINE | re.DOTALL)


def reference() -> str:
    """The Markdown of every command, its arguments and options, as Typer renders it."""
    command = [sys.executable, "-m", "typer", "pdctl.cli", "utils", "docs", "--name", "pdctl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the commands can not be loaded:\n{done.stdout}{done.stderr}")
    text = EXAMPLES.sub(_examples, done.stdout.strip())
    return HEADER + "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _examples(found: re.Match[str]) -> str:
    lines = "".join(f"$ {line.strip()}\n" for line in found[1].splitlines())
    return f"**Examples**:\n\n```console\n{lines}```\n"


def with_faults(markdown: str) -> str:
    """The page with its table of faults as the rows of :data:`pdctl.faults.kinds.KINDS` say."""
    head = "| Option | What it breaks | `--rank` is | Its site is in | Way |\n|--|--|--|--|--|\n"
    table = head + "".join(map(_row, KINDS.values()))
    text, places = FAULTS.subn(lambda found: found[1] + table + found[2], markdown)
    if places != 1:
        raise SystemExit(f"{SAFETY.relative_to(ROOT)} has {places} places for the table of faults, not one")
    return text


def _row(kind: Kind) -> str:
    option = f"--{kind.name} {kind.parameter.metavar}".rstrip().replace("|", r"\|")
    site = f"{kind.carrier} ranks" if kind.carrier != "any" else "ranks of both roles"
    way = kind.way.value if kind.per_room else f"{kind.way.value}, about no single room"
    return f"| `{option}` | {kind.what} | {kind.aim.value} | {site} | {way} |\n"


def commands(markdown: str) -> set[str]:
    """Names of the top-level commands in the reference."""
    return set(re.findall(r"^## `pdctl ([a-z][a-z-]*)`$", markdown, re.MULTILINE))


def unknown_commands(known: set[str]) -> Iterator[str]:
    """A line for every command line in the documentation that names none of the `known` commands."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if not page.exists():
            continue
        for block in CODE_BLOCK.findall(page.read_text()):
            for match in COMMAND_LINE.finditer(block):
                if match["command"] not in known:
                    yield f"{page.relative_to(ROOT)}: there is no `pdctl {match['command']}`"


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    written = {REFERENCE: reference(), SAFETY: with_faults(SAFETY.read_text())}
    if "--check" not in arguments:
        for page, text in written.items():
            page.write_text(text)
        return 0
    complaints = list(unknown_commands(commands(written[REFERENCE])))
    complaints += [
        f"{page.relative_to(ROOT)} is not what the code says now: run `make docs`"
        for page, text in written.items()
        if not page.exists() or page.read_text() != text
    ]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
