"""Keeps docs/findings in step with the catalogue of findings, and docs/glossary.md with the list of words.

``python -m tools.gen_findings`` writes docs/findings/PDnnn.md, their index and the glossary; with ``--check`` it writes
nothing and fails when one is stale or has no code any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pdctl.report.findings import Code, catalogue
from pdctl.report.glossary import glossary

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "findings"
WORDS = FOLDER.parent / "glossary.md"
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


def words() -> str:
    """Return the page of the words that pdctl uses."""
    parts = ["# Words\n\n`pdctl explain WORD` shows the same in a terminal. A finding's page uses these words."]
    for term in glossary().values():
        also = f" (also: {', '.join(term.also)})" if term.also else ""
        see = ", ".join(_link(one) for one in term.see)
        parts.append(f"## {term.term}\n\n{term.meaning}{also}" + (f"\n\nSee {see}." if see else ""))
    return HEADER.replace("findings.toml", "glossary.toml") + "\n\n".join(parts) + "\n"


def _link(word: str) -> str:
    return f"[{word}](#{word.lower().replace(' ', '-')})" if word in glossary() else f"`{word}`"


def pages() -> dict[str, str]:
    """Return file name → text of every page."""
    return {"README.md": index(), **{f"{code.code}.md": page(code) for code in catalogue().values()}}


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    expected = {"../glossary.md": words(), **pages()}
    if "--check" not in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in expected.items():
            (FOLDER / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    there["../glossary.md"] = WORDS.read_text() if WORDS.exists() else ""
    stale = sorted(name for name in {*there, *expected} if there.get(name) != expected.get(name))
    for name in stale:
        print(f"docs/findings/{name} is not what the catalogue says now: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
