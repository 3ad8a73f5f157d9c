"""CONTRIBUTING.md's example probe, built from the page in a copy of the project, and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.labs import Labs

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the files of the page, and the line of the registry."""
    copy = tmp_path_factory.mktemp("contributing")
    for name in ("pdctl", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    files = re.findall(r"^\*\*`([\w/.]+)`\*\*\n\n```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(files) == 5
    for name, text in files:
        file = copy / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    [line] = re.findall(r'^Entry\("oldest".*', PAGE, flags=re.MULTILINE)
    registry = copy / "pdctl" / "probes" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    assert text.count("PROBES = (\n") == 1
    registry.write_text(text.replace("PROBES = (\n", f"PROBES = (\n    {line}\n"), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def labs() -> Iterator[Labs]:
    with Labs() as found:
        yield found


def run(copy: Path, labs: Labs, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**labs.env, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)


def test_the_probe_of_the_page_is_a_command_and_a_stage_of_check(copy: Path, labs: Labs) -> None:
    lab = labs.up()
    lab.load(requests=1, to="decode", room=91, seconds=1)  # waits for its prefill
    done = run(copy, labs, "pdctl.cli", "oldest", "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "pdctl.oldest"
    rooms = {row["rank"]: row["room"] for row in document["ranks"]}
    assert rooms == {label: 91 if label.startswith("decode") else 0 for label in rooms}
    assert len(rooms) == 3
    table = run(copy, labs, "pdctl.cli", "oldest").stdout
    assert re.search(r"^decode dp0 pp0 tp1 +91 +decode\.\w+", table, flags=re.MULTILINE), table
    young = json.loads(
        run(copy, labs, "pdctl.cli", "oldest", "--over", "1h", "--rank", "decode:tp1", "-o", "json").stdout
    )
    assert [row["room"] for row in young["ranks"]] == [0]
    check = json.loads(run(copy, labs, "pdctl.cli", "check", "--only", "oldest", "-o", "json").stdout)
    assert [(stage["stage"], stage["summary"]) for stage in check["stages"]] == [("oldest", "2 ranks have a request")]


def test_its_help_and_its_schema_follow(copy: Path, labs: Labs) -> None:
    assert "--over" in run(copy, labs, "pdctl.cli", "oldest", "--help").stdout
    assert "oldest" in run(copy, labs, "pdctl.cli", "--help").stdout


def test_the_tests_of_the_page_pass_and_so_do_those_of_every_probe(copy: Path, labs: Labs) -> None:
    done = run(copy, labs, "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/probes/test_oldest_judge.py")
    assert done.returncode == 0, done.stdout
    done = run(
        copy, labs, "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/probes/test_registry.py", "-k", "oldest"
    )
    assert done.returncode == 0, done.stdout


def test_every_place_that_the_pages_name_is_there(copy: Path) -> None:
    """Paths are written from the project's root, or from ``pdctl``."""
    pages = PAGE + (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|toml|md))`", pages) if "NAME" not in name}
    assert len(named) > 30
    assert [
        name for name in sorted(named) if not any((base / name).exists() for base in (copy, copy / "pdctl", ROOT))
    ] == []
