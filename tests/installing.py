"""Install pdctl into an environment and see what that did to the distributions already there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.apart import host_network

ROOT = Path(__file__).resolve().parents[1]

_LIST = """
import json, re
from importlib.metadata import distributions
found = {}
for dist in distributions():
    found.setdefault(re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(), dist.version)
print(json.dumps(found))
"""


def copy_project(target: Path, replacing: Mapping[str, str]) -> Path:
    """What a build of pdctl needs, in `target`, with texts of pyproject.toml replaced. Each text must be there."""
    target.mkdir()
    shutil.copytree(ROOT / "pdctl", target / "pdctl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "docs/commands.md", "tools/man_pages.py"):
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    text = (ROOT / "pyproject.toml").read_text()
    for old, new in replacing.items():
        assert text.count(old) == 1, f"{old!r} should be in pyproject.toml once"
        text = text.replace(old, new)
    (target / "pyproject.toml").write_text(text)
    return target


def build_wheel(directory: Path, source: Path = ROOT) -> Path:
    """pdctl's wheel, built from `source` into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)], cwd=source)
    (wheel,) = directory.glob("pdctl-*.whl")
    return wheel


def installed(python: Path) -> dict[str, str]:
    """Version by normalised name of every distribution that `python` sees."""
    found: dict[str, str] = json.loads(run([str(python), "-c", _LIST]))
    return found


def pip_install(python: Path, *arguments: str) -> None:
    """``pip install`` as a user would type it, dependencies resolved, into the environment of `python`."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-input"]
    run([*host_network(), *pip, *arguments])


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Distributions of `before` whose version is another one in `after`, or that are gone."""
    return {name: (version, after.get(name)) for name, version in before.items() if after.get(name) != version}


def run(command: Sequence[str], cwd: Path | None = None) -> str:
    """Output of `command`; its errors are part of the failure."""
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout
