"""A recording that can't be written any more ends with its reason, and a child of the rank has no part in it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pdctl.agent.space import recording_size
from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from pdctl.recording.header import read_header
from pdctl.recording.reader import BadRecording, read
from pdctl.recording.writer import RecordingWriter
from tests.support.identities import identity


def made(folder: Path) -> tuple[RecordingWriter, list[str]]:
    writer, said = RecordingWriter.create(folder / "r", msgspec.json.encode(identity()), size=f.MIN_SIZE), list[str]()
    writer.when_stopped(said.append)
    return writer, said


def pulses(writer: RecordingWriter) -> None:
    for number in range(1000):
        writer.pulse(number, number)


def descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def test_what_was_flushed_is_in_the_file_and_nothing_before(tmp_path: Path) -> None:
    writer, _ = made(tmp_path)
    words = writer.visits(4)
    words[0], words[1] = 7, 9
    assert not read(tmp_path / "r").visits
    writer.flush()
    assert read(tmp_path / "r").visits["decode.transfer"].count == 7


@pytest.mark.parametrize(("size", "says"), [(0, "not a pdctl recording"), (100_000, "cut off: 100000 of")])
def test_a_file_that_was_cut_off_is_left_as_it_is(tmp_path: Path, size: int, says: str) -> None:
    writer, said = made(tmp_path)
    os.truncate(tmp_path / "r", size)
    pulses(writer)
    assert said == [writer.reason]
    assert writer.reason.startswith("somebody cut its file off at")
    for number in range(5000):
        writer.event(EventKind.NOTE, text=f"{number}")
    assert (tmp_path / "r").stat().st_size <= max(size, f.HEADER_SIZE)
    if size:
        assert any(problem.startswith(says) for problem in read(tmp_path / "r").problems)
    else:
        with pytest.raises(BadRecording, match=says):
            read(tmp_path / "r")


def test_a_write_that_fails_marks_the_file_as_stopped(tmp_path: Path) -> None:
    writer, said = made(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        writer.event(EventKind.NOTE, text="beyond the limit")
        pulses(writer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == ["File too large"] == [writer.reason]
    assert read_header(tmp_path / "r").state == f.STATE_STOPPED
    writer.stop()
    assert read(tmp_path / "r").state == "stopped"


def test_the_signal_of_a_file_limit_never_ends_the_process(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        test_a_write_that_fails_marks_the_file_as_stopped(tmp_path)
        assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGXFSZ, before)


def test_a_descriptor_that_came_to_be_another_file_s_is_not_written(tmp_path: Path) -> None:
    writer, said = made(tmp_path)
    [fd] = [n for n in descriptors() if same(n, tmp_path / "r")]
    assert not os.get_inheritable(fd)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, fd)
    pulses(writer)
    assert said == ["its descriptor was closed"]
    size = os.fstat(other).st_size
    pulses(writer)
    assert os.fstat(other).st_size == size
    del writer
    os.fstat(fd)  # it is the other's now, and stays open
    os.close(fd)
    os.close(other)


def same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer, said = made(tmp_path)
    writer.pulse(3, 3)
    child = os.fork()
    if not child:
        pulses(writer)
        writer.event(EventKind.NOTE, text="child")
        writer.stop()
        os._exit(1 if said or any(same(n, tmp_path / "r") for n in descriptors()) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (read(tmp_path / "r").ticks, read(tmp_path / "r").state, read(tmp_path / "r").events()) == (3, "writing", [])
    writer.pulse(4, 4)
    assert read(tmp_path / "r").ticks == 4


def test_writers_that_are_gone_leave_no_descriptor(tmp_path: Path) -> None:
    before = len(descriptors())
    for _ in range(20):
        made(tmp_path)
        (tmp_path / "r").unlink()
    assert len(descriptors()) == before


@pytest.mark.parametrize(
    ("limit", "says"),
    [("RLIMIT_NOFILE, (3, 3)", "Too many open files"), ("RLIMIT_FSIZE, (9999, 9999)", "File too large")],
)
def test_a_limit_at_the_start_is_an_error_and_leaves_no_file(tmp_path: Path, limit: str, says: str) -> None:
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom pdctl.recording.writer import RecordingWriter\n"
        f"resource.setrlimit(resource.{limit})\n"
        "try:\n    RecordingWriter.create(Path(sys.argv[1]), b'{}')\nexcept OSError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "r"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wanted", ["1e6", "-", "9" * 5000, "9" * 30, str(1 << 62), "\n", "16 MiB"])
def test_odd_sizes_are_refused_in_one_short_line(tmp_path: Path, wanted: str) -> None:
    with pytest.raises((OSError, ValueError)) as refused:
        recording_size(tmp_path, wanted)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)
