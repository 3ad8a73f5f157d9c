"""What the model-free harness showed of each SGLang: the table in docs/engine-versions.md.

Usage::

    python -m tests.engine.versions                   # runs it on every version, writes the table anew
    python -m tests.engine.versions --results FILE    # writes it from the JUnit file of such a run

Exit status: 0 all passed, 1 something did not; the table says what.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.engine import recipe
from tests.engine.env import ROOT
from tests.engine.install import install

PAGE = ROOT / "docs" / "engine-versions.md"
HARNESS = tuple(f"tests/engine/test_{name}.py" for name in ("light", "light_reductions", "heartbeats"))
TABLE = re.compile(r"(<!-- Harness: written by [^\n]*\n\n).*?(<!-- End of harness\. -->)", re.DOTALL)
_TEST = re.compile(r"test_(\w+)\[(.+)\]")
_BAD = ("failure", "error", "skipped")

Results = dict[str, dict[str, str]]
"""What a test shows, in words → version → ``passed``, ``failure``, ``error`` or ``skipped``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness, or take its results, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.versions", description="the harness on every version")
    parser.add_argument("--results", type=Path, help="a JUnit file of the harness; default: run it")
    given = parser.parse_args(arguments).results
    with tempfile.TemporaryDirectory(prefix="pdctl-versions-") as folder:
        file = given or Path(folder, "harness.xml")
        if given is None:
            install(list(recipe.VERSIONS))
            run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *HARNESS, f"--junitxml={file}"]
            subprocess.run(run, cwd=ROOT, check=False)
        found = results(file.read_text())
    PAGE.write_text(with_table(PAGE.read_text(), found))
    print("\n".join(table(found)))
    every = [outcome for by_version in found.values() for outcome in by_version.values()]
    return int(not every or any(outcome != "passed" for outcome in every))


def results(junit: str) -> Results:
    """Return what each test of the harness came to on each version. junit: the text of a JUnit file."""
    found: Results = {}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        named = _TEST.fullmatch(case.get("name", ""))
        if named is None:
            continue
        version, _, more = named[2].partition("-")
        if version not in recipe.VERSIONS:
            continue
        words = named[1].replace("_", " ") + (f" ({more.replace('-', ', ')})" if more else "")
        outcome = next((child.tag for child in case if child.tag in _BAD), "passed")
        found.setdefault(words, {})[version] = outcome
    return found


def table(found: Results) -> list[str]:
    """Return the lines of the table: a row a test, a column a version, in order."""
    seen = {version for by_version in found.values() for version in by_version}
    versions = sorted(seen, key=recipe.number)
    lines = [f"| | {' | '.join(versions)} |", f"|--|{'--|' * len(versions)}"]
    for words, by_version in found.items():
        cells = (by_version.get(version, "–") for version in versions)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return lines


def with_table(page: str, found: Results) -> str:
    """Return the page with the table of these results. Raises ValueError where it has no place for it."""
    text, places = TABLE.subn(lambda around: around[1] + "\n".join(table(found)) + "\n\n" + around[2], page)
    if places != 1:
        raise ValueError(f"{PAGE.name} has {places} places for the table of the harness, not one")
    return text


if __name__ == "__main__":
    sys.exit(main())
