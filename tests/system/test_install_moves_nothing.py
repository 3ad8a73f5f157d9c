"""Installing pdctl into a serving image changes no version of anything already there.

The image is a real virtual environment in which each distribution of ``engine_pins.txt`` consists of its metadata
only: what pip reads to decide, without gigabytes of CUDA. tests/engine does the same to a real engine's environment.
"""

from __future__ import annotations

import re
import sys
import venv
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from tests.installing import ROOT, build_wheel, copy_project, installed, moved, pip_install, run
from tests.support.apart import host_network

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PINS = dict(
    line.split("==") for line in (Path(__file__).parent / "engine_pins.txt").read_text().split() if "==" in line
)


def make_image(directory: Path, pins: dict[str, str]) -> Path:
    """An environment that has `pins`; returns its Python."""
    venv.create(directory, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name, pin in pins.items():
        info = directory / "lib" / version / "site-packages" / f"{name.replace('-', '_')}-{pin}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {pin}\n")
        (info / "INSTALLER").write_text("pip\n")
        # pip removes what RECORD lists, should it decide to replace this distribution.
        (info / "RECORD").write_text("".join(f"{info.name}/{f},,\n" for f in ("METADATA", "INSTALLER", "RECORD")))
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("extras", ["", "[data,lab,replay,store]"])
def test_an_image_with_the_engines_pins_stays_as_it_is(tmp_path: Path, wheel: Path, extras: str) -> None:
    python = make_image(tmp_path / "image", PINS)
    before = installed(python)
    assert before == PINS

    pip_install(python, f"{wheel}{extras}")

    after = installed(python)
    assert moved(before, after) == {}
    assert set(after) - set(before) == {"pdctl"}, "everything pdctl needs is there already"


@pytest.mark.long
@pytest.mark.parametrize("bound", ["rich<13", "msgspec>=0.19"])
def test_a_narrower_range_would_be_noticed(tmp_path: Path, bound: str) -> None:
    """The same test fails when one dependency excludes the image's version, from above or from below."""
    name = re.match(r"\w+", bound)[0]
    (range_now,) = [r.replace(" ", "") for r in requires("pdctl") if r.startswith(name)]
    source = copy_project(tmp_path / "source", {f'"{range_now}"': f'"{bound}"'})
    python = make_image(tmp_path / "image", PINS)
    before = installed(python)

    pip_install(python, str(build_wheel(tmp_path / "wheel", source)))

    assert set(moved(before, installed(python))) >= {name}


def test_an_image_that_lacks_some_of_them_stays_as_it_is_under_its_own_freeze(tmp_path: Path, wheel: Path) -> None:
    """Here the newest typer and pandas alone would bring other versions of what they need in turn."""
    pins = {name: pin for name, pin in PINS.items() if name not in ("typer", "pandas", "datasets")}
    python = make_image(tmp_path / "image", pins)
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("".join(f"{name}=={pin}\n" for name, pin in pins.items()))

    pip_install(python, "-c", str(freeze), f"{wheel}[data]")

    after = installed(python)
    assert moved(pins, after) == {}
    assert {"pdctl", "typer", "pandas"} <= set(after)


def test_the_readmes_lines_replace_an_older_pdctl_in_a_plain_shell_and_move_nothing_else(tmp_path: Path) -> None:
    """An older one that came from a directory: what pip freeze says of it would hold it."""
    python = make_image(tmp_path / "image", {**PINS, "pdctl": "0.0.1"})
    [info] = tmp_path.rglob("pdctl-0.0.1.dist-info")
    (info / "direct_url.json").write_text('{"url": "file:///gone/pdctl", "dir_info": {}}')
    with (info / "RECORD").open("a") as record:
        record.write(f"{info.name}/direct_url.json,,\n")
    lines = re.search(r"```\n(pip list .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert lines.splitlines()[-1].endswith(" .")
    pip = f'pip() {{ {sys.executable} -m pip --python {python} "$@"; }}\n'

    run(
        [*host_network(), "sh", "-ec", pip + lines.replace("/tmp/held.txt", f"{tmp_path}/held.txt")],
        cwd=copy_project(tmp_path / "source", {}),
    )

    after = installed(python)
    assert moved(PINS, after) == {}
    assert after["pdctl"] == version("pdctl")
    assert set(after) == {*PINS, "pdctl"}


def test_no_dependency_has_an_upper_bound_and_mooncake_comes_by_its_own_name() -> None:
    for requirement in requires("pdctl"):
        name_and_range, _, marker = requirement.partition(";")
        if "mooncake" in name_and_range:
            assert "extra == 'mooncake" in marker, requirement
        assert not re.search(r"[<~!]|==", name_and_range), requirement
