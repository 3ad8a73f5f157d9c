"""What others do to the recording of a running rank ends the recording at most, and never the rank."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def cut_off(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, 100_000)


def punch(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    assert fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, 0, 1 << 20) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)


def file_of(lab: Lab, label: str) -> Path:
    process = lab.process(label)
    return lab.labs.folder / "rec" / f"{process.pid}-{process.start}.pdrec"


def log_of(lab: Lab, label: str) -> str:
    return (lab.folder / f"{label.replace(' ', '-')}.log").read_text(errors="replace")


def ranks_of(lab: Lab) -> list[str]:
    return [p.label for p in lab.processes if file_of(lab, p.label).exists()]


def under_load(lab: Lab, attack: Callable[[], None]) -> None:
    """Send a load, attack in the middle of it, send another: every request of both is answered and no process ends."""
    outcomes = []
    load = threading.Thread(target=lambda: outcomes.append(lab.load(requests=60, rate=40.0)))
    load.start()
    attack()
    load.join()
    outcomes.append(lab.load(requests=40, rate=40.0))
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert outcome.good, outcome
    assert lab.left() == lab.processes


def test_files_cut_off_punched_replaced_and_removed_under_load(labs: Labs) -> None:
    lab = labs.up()
    ranks = ranks_of(lab)
    assert len(ranks) >= 3
    attacks = dict(zip(ranks, (cut_off, punch, cut_in_the_middle), strict=False))

    def attack() -> None:
        for label, how in attacks.items():
            how(file_of(lab, label))

    under_load(lab, attack)
    for label in attacks:
        until(f"{label} says it", lambda label=label: "recording stopped: somebody" in log_of(lab, label))
    shown = labs.cli("ranks", code=None).stdout
    assert "somebody cut its file off" in " ".join(shown.split()), shown
    differs = labs.cli("diff-queues", code=None)
    assert differs.returncode == 3, "no rounds of these ranks, and no divergence made of what is left"
    assert "Traceback" not in differs.stderr
    assert "DIVERGED" not in differs.stdout, differs.stdout


def test_a_recording_that_is_replaced_is_not_taken_for_the_rank_s(labs: Labs) -> None:
    lab = labs.up()
    ranks = ranks_of(lab)
    one, other, *_ = [label for label in ranks if "decode" in label]

    def attack() -> None:
        file_of(lab, one).unlink()
        shutil.copy(file_of(lab, other), file_of(lab, one))
        file_of(lab, other).chmod(0)

    under_load(lab, attack)
    assert "recording stopped" not in log_of(lab, one), "who asks the rank itself still gets what it writes"
    differs = labs.cli("diff-queues", code=3)
    assert "is of another process" in " ".join((differs.stdout + differs.stderr).split()), differs


def test_a_limit_on_file_sizes_ends_the_recording_alone(labs: Labs) -> None:
    lab = labs.up()
    label = next(label for label in ranks_of(lab) if "decode" in label)

    def attack() -> None:
        hard = resource.prlimit(lab.process(label).pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(lab.process(label).pid, resource.RLIMIT_FSIZE, (100, hard))

    under_load(lab, attack)
    # Its log is a file too, and takes no more lines: the agent says it.
    until("ranks says it", lambda: "File too large" in labs.cli("ranks", "-o", "json", code=None).stdout)


def test_at_start_what_was_left_there_holds_nobody_up(labs: Labs) -> None:
    for name in ("rec", "run"):
        (labs.folder / name).mkdir(mode=0o700)
    for number, suffix in enumerate((".pdrec", ".json")):
        for folder in (labs.folder / "rec", labs.folder / "run"):
            os.mkfifo(folder / f"{4194304 + number}-1{suffix}")
            (folder / f"{4194304 + number}-2{suffix}").symlink_to("/dev/zero")
            (folder / f"{4194304 + number}-3{suffix}").mkdir()
            with (folder / f"{4194304 + number}-4{suffix}").open("wb") as sparse:
                sparse.truncate(10 << 30)
            (folder / f"{4194304 + number}-5{suffix}").write_bytes(b"[" * 60_000)
            (folder / f"{4194304 + number}-6{suffix}").write_bytes(b"PDCTLREC" + b"\xff" * 20_000)
            (folder / f"{'9' * 200}-7{suffix}").write_bytes(b"{}")
    lab = labs.up()
    assert ranks_of(lab), "recordings are made"
    assert lab.load(requests=10).good
    assert lab.left() == lab.processes
