"""Installs SGLang for the engine tests, outside the tree: one venv, one directory per further version, a tiny model.

Usage::

    python -m tests.engine.install [--versions 0.5.12.post1 0.5.13.post1 ...]    # default: all
    python -m tests.engine.install --check [--versions ...]                      # installed? 0 yes, 1 no

A part that is complete is left alone; one that was interrupted is made anew. About 3.5 GB and some minutes of pip for
the first version, 300 MB and half a minute for each other one. Anyone may run this twice at the same time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.engine import recipe
from tests.engine.env import EngineNotInstalledError, engine_env, engine_home, site_packages, stamp
from tools.provision import SetupError, ensure_system, locked, run, say

_TORCHVISION_IMPORT = "import torch\n"
_TORCHVISION_PATCH = """
# Only the schemas of two operators: their code is linked to CUDA and does not load beside a CPU torch.
_without_cuda = torch.library.Library("torchvision", "DEF")
_without_cuda.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_without_cuda.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all there, 1 not, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.install", description="SGLang for the engine tests")
    parser.add_argument("--versions", nargs="+", choices=sorted(recipe.VERSIONS), default=sorted(recipe.VERSIONS))
    parser.add_argument("--check", action="store_true", help="install nothing, say what is there")
    parser.add_argument("--nixl", action="store_true", help="also NIXL, 130 MB, for pairs that do without Mooncake")
    options = parser.parse_args(arguments)
    if options.check:
        return check(options.versions)
    try:
        install(options.versions, nixl=options.nixl)
    except SetupError as error:
        say(str(error))
        return 1
    return 0


def check(versions: Sequence[str]) -> int:
    """Say for each version whether it is installed; 1 if one is not."""
    status = 0
    for version in versions:
        try:
            print(f"{version}: {engine_env(version).python}")
        except EngineNotInstalledError as error:
            print(error)
            status = 1
    return status


def install(versions: Sequence[str], *, nixl: bool = False, pytest: bool = False) -> None:
    """Install what is missing for `versions`, and NIXL and pytest where they are asked for. Raises `SetupError`."""
    home = engine_home()
    ensure_system(recipe.SYSTEM)
    with locked(home.with_suffix(".lock")):
        part(home, "venv", lambda: make_venv(home / "venv"))
        part(home, "model", lambda: make_model(home))
        if nixl:
            part(home, "nixl", lambda: make_nixl(home))
        if pytest:
            part(home, "pytest", lambda: make_beside(home, "pytest", recipe.PYTEST))
        for overlay in recipe.OVERLAYS:
            if overlay.version in versions:
                part(home, overlay.part, lambda v=overlay: make_overlay(home, v))  # type: ignore[misc]


def part(home: Path, name: str, make: Callable[[], None]) -> None:
    """Run `make` unless its stamp is there; the stamp is written last."""
    done = stamp(name, home)
    if done.exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    say(f"engine {name}: installing into {home}")
    started = time.monotonic()
    make()
    done.touch()
    say(f"engine {name}: {time.monotonic() - started:.0f} s")


def make_venv(venv: Path) -> None:
    """SGLang's base version with what it needs on a CPU."""
    shutil.rmtree(venv, ignore_errors=True)
    run([Path(getattr(sys, "_base_executable", sys.executable)), "-m", "venv", venv])
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
    run([*pip, recipe.TORCH])
    # torch again: nothing in the requirements may replace the build that was just chosen.
    run([*pip, recipe.TORCH, "-r", recipe.REQUIREMENTS])
    run([*pip, "--no-deps", f"sglang=={recipe.BASE.version}", *recipe.WITHOUT_DEPENDENCIES])
    patch_torchvision(site_packages(venv.parent) / "torchvision" / "__init__.py")
    hook = site_packages(venv.parent) / "_engine_test_startup.py"
    shutil.copyfile(recipe.STARTUP_HOOK, hook)
    hook.with_suffix(".pth").write_text(f"import {hook.stem}\n")


def patch_torchvision(init: Path) -> None:
    """Make ``import torchvision`` work: its Python code (transforms, io) is then the real one."""
    source = init.read_text()
    if _TORCHVISION_IMPORT not in source:
        raise SetupError(f"{init} does not import torch where the patch expects it")
    init.write_text(source.replace(_TORCHVISION_IMPORT, _TORCHVISION_IMPORT + _TORCHVISION_PATCH, 1))


def make_nixl(home: Path) -> None:
    """The transfer library NIXL, for any version."""
    target = make_beside(home, "nixl", recipe.NIXL)
    for name in recipe.NIXL_LEFT_OUT:
        shutil.rmtree(target / name, ignore_errors=True)


def make_beside(home: Path, name: str, packages: Sequence[str]) -> Path:
    """A directory with these packages alone, to be put on PYTHONPATH."""
    target = home / name
    shutil.rmtree(target, ignore_errors=True)
    pip = [home / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
    run([*pip, "--target", target, *packages])
    return target


def make_model(home: Path) -> None:
    """The model directory all versions serve."""
    model = home / "tiny-llama"
    shutil.rmtree(model, ignore_errors=True)
    run([home / "venv" / "bin" / "python", recipe.TINY_MODEL, model], HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")


def make_overlay(home: Path, engine: recipe.EngineVersion) -> None:
    """A directory with another SGLang and the packages it pins differently, to be put on PYTHONPATH."""
    overlay = home / "overlays" / engine.part
    shutil.rmtree(overlay, ignore_errors=True)
    python = home / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", overlay]
    run([*pip, f"sglang=={engine.version}", *engine.pins])
    seen = subprocess.run(
        [python, "-c", "from importlib.metadata import version; print(version('sglang'))"],
        env={**os.environ, "PYTHONPATH": str(overlay)},
        capture_output=True,
        text=True,
        check=False,
    )
    if seen.stdout.strip() != engine.version:
        raise SetupError(f"{overlay} should hold SGLang {engine.version}, found {seen.stdout or seen.stderr}")


if __name__ == "__main__":
    sys.exit(main())
