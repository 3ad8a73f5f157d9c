from __future__ import annotations

import importlib.util

import pytest

from pdctl.lab import launch
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.extras import MODULES, require


@pytest.mark.parametrize("extra", MODULES)
def test_a_missing_module_is_said_in_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PdctlError) as raised:
        require(extra, "a command")
    said = f"a command needs {MODULES[extra]}, which is not installed: pip install 'pdctl[{extra}]'"
    assert (raised.value.message, raised.value.next_step, raised.value.code) == (said, "", Exit.USAGE)


def test_a_module_that_is_there_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "data", "json")
    require("data", "a command")


def test_a_lab_that_must_have_mooncake_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mooncake" else "found")
    with pytest.raises(PdctlError, match=r"--transport mooncake needs mooncake.*'pdctl\[mooncake-cpu\]'"):
        launch.up(LabConfig(name="lab", transport="mooncake"))
