"""A recording takes a share of what is free; recordings of old starts make way, evidence of the last ones stays."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from pdctl.agent.space import KEEP_STARTS, SHARE, make_way, recording_size
from pdctl.protocol import paths
from pdctl.protocol.model import Identity
from pdctl.protocol.processes import look
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from tests.support.identities import identity

GONE = 2**22 + 1
"""A pid that Linux never gives."""


def leave(folder: Path, who: Identity) -> Path:
    path = folder / f"{paths.stem(who.pid, who.proc_start)}{paths.RECORDING_SUFFIX}"
    RecordingWriter.create(path, msgspec.json.encode(who), size=f.MIN_SIZE).stop()
    return path


def test_the_newest_earlier_starts_stay(tmp_path: Path) -> None:
    left = [
        leave(
            tmp_path, identity(pid=GONE + 10 * start + tp, tp=tp, instance=f"i{start}", started_wall_ns=start * 10**10)
        )
        for start in range(KEEP_STARTS + 2)
        for tp in (0, 1)
    ]
    registration = left[0].with_suffix(paths.REGISTRATION_SUFFIX)
    registration.write_bytes(b"{}")
    assert make_way([tmp_path], identity(instance="new")) == 4
    assert sorted(tmp_path.glob("*.pdrec")) == sorted(left[4:])
    assert not registration.exists()


def test_what_is_not_an_earlier_start_of_this_server_stays(tmp_path: Path) -> None:
    old = 10**10
    keep = [
        leave(tmp_path, identity(pid=GONE + 1, service="decode here:30002", started_wall_ns=old)),
        leave(tmp_path, identity(pid=GONE + 2, host="elsewhere", started_wall_ns=old)),
        leave(tmp_path, identity(pid=GONE + 3, cluster="other", started_wall_ns=old)),
        leave(tmp_path, identity(pid=GONE + 4, instance="new", started_wall_ns=old)),
        leave(tmp_path, identity(pid=os.getpid(), proc_start=look(os.getpid()).start, instance="old")),
    ]
    keep += [leave(tmp_path, identity(pid=GONE + 20 + n, instance=f"kept{n}")) for n in range(KEEP_STARTS)]
    damaged = tmp_path / "9-9.pdrec"
    damaged.write_bytes(b"PDCTLREC")
    assert make_way([tmp_path, tmp_path / "absent"], identity(instance="new")) == 0
    assert sorted(tmp_path.iterdir()) == sorted([*keep, damaged])


def test_what_others_put_into_a_default_directory_makes_no_recording_go(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir(mode=0o700)
    theirs.mkdir()
    theirs.chmod(0o755)
    kept = leave(mine, identity(pid=GONE, service="decode here:30002", started_wall_ns=10**10))
    leave(theirs, identity(pid=GONE, instance="old", started_wall_ns=10**10))
    for n in range(KEEP_STARTS):
        leave(theirs, identity(pid=GONE + 1 + n, instance=f"kept{n}", started_wall_ns=(2 + n) * 10**10))
    assert make_way([mine, theirs], identity(instance="new")) == 0
    assert kept.exists()


def test_a_size_asked_for_is_taken_and_nonsense_refused(tmp_path: Path) -> None:
    assert recording_size(tmp_path, "1048576") == 1048576
    with pytest.raises(ValueError, match="a lot"):
        recording_size(tmp_path, "a lot")


def test_the_default_is_no_more_than_a_share_of_what_is_free(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert recording_size(tmp_path, "") <= max(f.MIN_SIZE, found.f_bavail * found.f_frsize // SHARE)
    assert recording_size(tmp_path, "") <= f.DEFAULT_SIZE
