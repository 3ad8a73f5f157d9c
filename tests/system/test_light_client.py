"""pdctl without extras, as on a laptop or a jump host: it looks at ranks, and names the extra that the rest needs.

The client is a virtual environment with pdctl's wheel and what the wheel asks for, linked from where the tests run: no
package index is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

import pytest
from packaging.requirements import Requirement

from pdctl.protocol.extras import MODULES, install
from tests.installing import build_wheel, pip_install
from tests.support.labs import Labs
from tests.support.patience import patience

pytestmark = pytest.mark.system

TRACE = Path(__file__).parents[1] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = 16851422098683615


class LightClient:
    """An environment that has pdctl's wheel without extras. wheel: the distribution as it was built."""

    def __init__(self, folder: Path) -> None:
        path = build_wheel(folder / "wheel")
        info = next(entry for entry in ZipPath(path).iterdir() if entry.name.endswith(".dist-info"))
        self.wheel: Distribution = PathDistribution(info)
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = folder / "venv" / "lib" / version / "site-packages"
        for name in required(self.wheel):
            link(distribution(name), site)
        pip_install(self.python, "--no-index", str(path))  # which fails where something is missing

    def run(self, *arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment's ``bin``, and of it alone."""
        program, *rest = map(str, arguments)
        # This checkout and its programs are out of sight.
        env = {k: v for k, v in (env or os.environ).items() if k not in ("PYTHONPATH", "PATH")}
        env["PATH"] = os.defpath
        return subprocess.run(
            [str(self.python.parent / program), *rest],
            env=env,
            cwd=self.python.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )


def required(dist: Distribution) -> set[str]:
    """Return the names of the distributions that `dist` needs without extras, and those that they need."""
    names: set[str] = set()
    left = [dist]
    while left:
        wanted = map(Requirement, left.pop().requires or ())
        more = {r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})} - names
        names |= more
        left += map(distribution, more)
    return names


def link(dist: Distribution, site: Path) -> None:
    """Let `site` have the modules and the metadata of `dist`."""
    for name in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
        (site / name).symlink_to(str(dist.locate_file(name)))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> LightClient:
    return LightClient(tmp_path_factory.mktemp("light"))


@pytest.fixture(scope="module")
def lab() -> Iterator[Labs]:
    """An embedded cluster, run by the environment of the tests, that had a few requests."""
    with Labs() as labs:
        labs.up().load(requests=4)
        yield labs


def test_the_wheel_asks_a_client_for_nothing_heavy(client: LightClient) -> None:
    wanted = [Requirement(text) for text in client.wheel.requires or ()]
    base = {r.name for r in wanted if r.marker is None or "extra" not in str(r.marker)}
    assert base == {"msgspec", "numpy", "pyyaml", "pyzmq", "rich", "tomli", "typer"}
    assert set(client.wheel.metadata.get_all("Provides-Extra")) >= {"all", "attach", "mooncake", *MODULES}
    there = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    done = client.run("python", "-c", there, "pdctl", "psutil", *MODULES.values())
    assert (done.stdout, done.stderr) == ("pdctl\n", "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("--help", "diff-queues"),
        ("ranks", "decode@lab"),
        ("diff-queues", "agree"),
        ("stuck", ""),
        ("check", "ok  queues"),
        ("verify-routing", ""),
        ("stacks", "decode"),
        ("dump metadata", "slot"),
        ("faults", ""),
        ("lab status", "decode dp0 pp0 tp1"),
        ("lab load -n 2", "2 completed"),
        ("drill list", "metadata-gate"),
        ("explain PD101", "PD101"),
    ],
)
def test_a_client_looks_at_ranks(client: LightClient, lab: Labs, command: str, says: str) -> None:
    done = client.run("pdctl", *command.split(), env=lab.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_a_client_breaks_something_and_heals_it(client: LightClient, lab: Labs) -> None:
    for command in ("inject --delay-metadata 1s --rank decode:tp1 --detach", "heal --all"):
        done = client.run("pdctl", *command.split(), env=lab.env)
        assert done.returncode == 0, done.stderr


def test_a_client_records_and_looks_again(client: LightClient, lab: Labs, tmp_path: Path) -> None:
    file = tmp_path / "lab.pdtrace"
    done = client.run("pdctl", "record", file, env=lab.env)
    assert done.returncode == 0, done.stderr
    again = client.run("pdctl", "diff-queues", "--from", file)
    assert again.returncode == 0, again.stderr
    story = client.run("pdctl", "story", ROOM, "--from", TRACE)
    assert story.returncode == 0, story.stderr
    hang = client.run("pdctl", "diff-queues", "--from", TRACE)
    assert hang.returncode == 1
    assert "PD101" in hang.stdout
    test = client.run("pdctl", "replay", TRACE, "--emit-test", tmp_path / "test_it.py")
    assert test.returncode == 0, test.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("lab up", "lab"),
        ("demo", "lab"),
        ("drill run metadata-gate --lab", "lab"),
        (f"replay {TRACE}", "replay"),
        (f"explore {TRACE}", "replay"),
        ("explore --model ranks=2,requests=2", "replay"),
        (f"story {ROOM} --from {TRACE} --plot story.svg", "plot"),
        ("--store 127.0.0.1:1 ranks", "store"),
    ],
)
def test_what_a_client_lacks_is_named(client: LightClient, tmp_path: Path, command: str, extra: str) -> None:
    env = {**os.environ, "PDCTL_RUN_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = client.run("pdctl", *command.split(), env=env)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(f" needs {MODULES[extra]}, which is not installed: {install(extra)}")
    assert not (tmp_path / "state").exists()


def test_load_trace_names_what_it_lacks(client: LightClient) -> None:
    program = (
        "import sys, pdctl\nfrom pdctl.protocol.errors import PdctlError\n"
        "try:\n    pdctl.load_trace(sys.argv[1])\nexcept PdctlError as error:\n    print(int(error.code), error)"
    )
    done = client.run("python", "-c", program, TRACE)
    assert (done.stdout, done.stderr) == (f"2 load_trace needs pandas, which is not installed: {install('data')}\n", "")
