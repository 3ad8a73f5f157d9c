"""Executes the pages of docs/notebooks: blocks of python, each followed by a block of text with what it prints.

``python -m tools.gen_notebooks`` writes what the blocks print now into the pages; with ``--check`` it writes nothing and
fails if that is not what they show. The blocks of one page run one after the other, in its directory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def executed(page: Path) -> str:
    """Return the page with what its blocks print. Raises what a block raises."""
    names: dict[str, object] = {"__name__": page.stem}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(page), "exec"), names)
        lines = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())
        shown = f"\n```text\n{lines}```\n" if lines else ""
        return f"```python\n{block['code']}```\n{shown}"

    here = Path.cwd()
    os.chdir(page.parent)
    try:
        return BLOCK.sub(run, page.read_text())
    finally:
        os.chdir(here)


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    stale = 0
    for page in sorted(FOLDER.glob("*.md")):
        text = executed(page)
        if text == page.read_text():
            continue
        if "--check" in arguments:
            print(f"{page.name} does not show what it prints: run `python -m tools.gen_notebooks`", file=sys.stderr)
            stale = 1
        else:
            page.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
