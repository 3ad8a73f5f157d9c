"""Processes of frozen cgroups, whose own state does not tell that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.protocol.processes import Process, _frozen, look_closely


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "frozen"),
    [
        ("0::/pod/a\n", "sys/fs/cgroup/pod/a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/pod/a\n", "sys/fs/cgroup/pod/a/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("3:cpu:/\n0::/pod/a\n", "sys/fs/cgroup/unified/pod/a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("6:freezer:/pod\n0::/\n", "sys/fs/cgroup/freezer/pod/freezer.state", "FROZEN\n", True),
        ("6:freezer:/pod\n0::/\n", "sys/fs/cgroup/freezer/pod/freezer.state", "THAWED\n", False),
        ("nonsense\n", "sys/fs/cgroup/cgroup.events", "frozen 1\n", False),
    ],
)
def test_a_frozen_cgroup(tmp_path: Path, cgroup: str, file: str, text: str, *, frozen: bool) -> None:
    for name, content in (("proc/7/cgroup", cgroup), (file, text)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    assert _frozen(7, tmp_path) is frozen
    assert not _frozen(8, tmp_path)


def test_a_process_that_is_frozen_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.protocol.processes.look", lambda _: Process("S", 5))
    monkeypatch.setattr("pdctl.protocol.processes._frozen", lambda _: True)
    process = look_closely(7)
    assert process.runs_since(5)
    assert "frozen with its cgroup" in process.why_silent
