"""Keeps docs/findings in step with the catalogue of findings.

``python -m tools.gen_findings`` writes docs/findings/PDnnn.md and their index; with ``--check`` it writes nothing and fails
when one is stale or has no code any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pdctl.report.findings import Code, catalogue

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "findings"
HEADER = "<!-- Written by `make docs` from pdctl/report/findings.toml. -->\n\n"


def page(code: Code) -> str:
    """Return the page of one code."""
    parts = [f"# {code.code}: {code.title}", f"Level: {code.level.value}", code.meaning]
    for title, text in (
        ("What it rests on", code.evidence),
        ("Known versions", code.versions),
        ("Reference", code.reference),
        ("Next", code.next_step),
    ):
        if text:
            parts.append(f"## {title}\n\n{text}")
    return HEADER + "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the page that lists all codes."""
    rows = [f"| [{code.code}]({code.code}.md) | {code.level.value} | {code.title} |" for code in catalogue().values()]
    text = "# Findings\n\n`pdctl explain CODE` shows the same in a terminal.\n\n| Code | Level | Found |\n|--|--|--|\n"
    return HEADER + text + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """Return file name → text of every page."""
    return {"README.md": index(), **{f"{code.code}.md": page(code) for code in catalogue().values()}}


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    expected = pages()
    if "--check" not in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in expected.items():
            (FOLDER / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in {*there, *expected} if there.get(name) != expected.get(name))
    for name in stale:
        print(f"docs/findings/{name} is not what the catalogue says now: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
