"""pdctl, installed into a copy of a real engine's environment, changes nothing else, and the engine finds it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine import recipe
from tests.engine.env import EngineNotInstalledError, engine_env
from tests.installing import build_wheel, installed, moved, pip_install, run

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

_PLUGINS = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='sglang.srt.plugins')])"


def test_a_real_engines_environment_stays_as_it_is(tmp_path: Path) -> None:
    try:
        original = engine_env(recipe.BASE.version).python
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
    venv = original.parents[1]
    # Hard links: gigabytes in seconds. pip replaces files, it does not write into them. Same file system, hence not
    # in tmp_path.
    copy = venv.with_name(f"copy-{tmp_path.name}")
    try:
        run(["cp", "--archive", "--link", str(venv), str(copy)])
        python = copy / "bin" / "python"
        before = installed(python)
        assert before["sglang"] == recipe.BASE.version

        pip_install(python, str(build_wheel(tmp_path)))

        after = installed(python)
        assert moved(before, after) == {}
        assert set(after) - set(before) == {"pdctl"}
        assert "pdctl.agent.plugin:register" in run([str(python), "-c", _PLUGINS])
        assert installed(original) == before
    finally:
        shutil.rmtree(copy, ignore_errors=True)
