"""What others may have made is judged before it is opened, looked up inside its root, and never written through."""

from __future__ import annotations

import errno
import math
import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.protocol import files
from pdctl.protocol.errors import Exit, PdctlError


def made(path: Path, kind: str) -> Path:
    """Put something of ``kind`` at ``path``."""
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a link":
        path.symlink_to("/dev/zero")
    elif kind == "a link to nothing":
        path.symlink_to(path.parent / "nothing")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    return path


def listed(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


KINDS = ("a FIFO", "a directory", "a link", "a link to nothing", "a socket")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", [files.open_regular, files.open_append, files.open_lock])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str, opened: Callable[[Path], int]) -> None:
    path = made(tmp_path / "it", kind)
    before = len(listed(Path("/proc/self/fd")))
    with pytest.raises(OSError, match=kind.removesuffix(" to nothing")):
        opened(path)
    assert len(listed(Path("/proc/self/fd"))) == before


def test_what_the_user_named_may_be_a_link_but_not_to_a_device(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    (tmp_path / "good").symlink_to("file")
    (tmp_path / "bad").symlink_to("/dev/zero")
    assert files.read_regular(tmp_path / "good", 10, follow=True) == b"data"
    with pytest.raises(OSError, match="is a device"):
        files.read_regular(tmp_path / "bad", 10, follow=True)


def test_a_file_over_its_limit_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 10 << 30)
    with pytest.raises(OSError, match="over the limit of 65536 bytes") as caught:
        files.read_regular(path, 65536)
    assert caught.value.errno == errno.EFBIG
    os.truncate(path, 65536)
    assert len(files.read_regular(path, 65536)) == 65536


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    with pytest.raises(PermissionError, match=f"belongs to uid {os.getuid()}"):
        files.read_regular(tmp_path / "file", 10, owners=(os.getuid() + 1,))


@pytest.mark.parametrize("kernel", ["with openat2", "without openat2"])
def test_a_path_through_a_root_does_not_leave_it(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "without openat2":
        monkeypatch.setattr(files, "_OPENAT2", 100_000)
    root, secret = tmp_path / "root", tmp_path / "secret"
    (root / "tmp/real").mkdir(parents=True)
    secret.mkdir()
    for folder in (root / "tmp/real", secret):
        (folder / "file").write_text(folder.name)
    (root / "tmp/out").symlink_to(secret)
    (root / "tmp/up").symlink_to("../../secret")
    (root / "tmp/self").symlink_to("/proc/self/root")
    place = os.open(root, os.O_PATH)
    try:
        flags = os.O_PATH | os.O_NOFOLLOW
        os.close(files._in_root(place, "/tmp/real/file", flags))
        for path in ("/tmp/out/file", "/tmp/up/file", "/tmp/real/../../../secret/file", f"/tmp/self{secret}/file"):
            with pytest.raises(OSError, match="Errno"):
                os.close(files._in_root(place, path, flags))
    finally:
        os.close(place)


def test_a_root_of_a_process_is_where_its_links_lead(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    assert files.read_regular(f"/proc/{os.getpid()}/root{tmp_path}/file", 10) == b"data"
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="is a link"):
        files.read_regular(f"/proc/{os.getpid()}/root{tmp_path}/link", 10)


def test_a_directory_is_listed_up_to_a_number_and_a_time(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number:03}.json").touch()
    (tmp_path / ".hidden.json").touch()
    (tmp_path / "other").touch()
    assert files.names(tmp_path, ".json", 600, math.inf) == ([f"{n:03}.json" for n in range(600)], True)
    found, whole = files.names(tmp_path, ".json", 10, math.inf)
    assert (len(found), whole) == (10, False)
    found, whole = files.names(tmp_path, ".json", 600, time.monotonic() - 1)
    assert len(found) < 600
    assert not whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True])
def test_nothing_but_a_regular_file_is_replaced(tmp_path: Path, kind: str, force: bool) -> None:
    path = made(tmp_path / "it", kind)
    before = path.lstat().st_ino
    with pytest.raises(PdctlError) as caught:
        files.write_new(path, b"data", force=force)
    assert caught.value.code == Exit.USAGE
    assert path.lstat().st_ino == before
    assert listed(tmp_path) == ["it"]


def test_a_file_is_written_whole_and_replaced_only_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_new(path, b"one")
    with pytest.raises(PdctlError, match="exists"):
        files.write_new(path, b"two")
    assert path.read_bytes() == b"one"
    files.write_new(path, b"two", force=True)
    assert path.read_bytes() == b"two"
    with pytest.raises(PdctlError, match="is not a directory"):
        files.write_new(path / "below", b"")
    with pytest.raises(PdctlError, match="File name too long"):
        files.write_new(tmp_path / ("n" * 300), b"")
    assert listed(tmp_path) == ["file"]


def test_where_there_is_no_room_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(PdctlError, match="can't be written: File too large") as caught:
            files.write_new(path, bytes(100_000), force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code == Exit.PARTIAL
    assert path.read_bytes() == b"before"
    assert listed(tmp_path) == ["file"]


def test_a_file_for_appending_is_made_closed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    old = os.umask(0)
    try:
        for line in (b"a\n", b"b\n"):
            fd = files.open_append(path)
            os.write(fd, line)
            os.close(fd)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"a\nb\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_rank_loads_nothing_more_for_it() -> None:
    code = (
        "import sys, pdctl.protocol.files; print([m for m in ('msgspec', 'numpy', 'zmq', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
