"""Where a rank's files are: closed to others, whole or not at all, and named after one process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol import paths


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_private_directory_is_made_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o077, 0o777):
        old = os.umask(umask)
        try:
            made = paths.private_dir(tmp_path / f"of-{umask}")
        finally:
            os.umask(old)
        assert mode(made) == 0o700


@pytest.mark.parametrize("shared", [0o1777, 0o755, 0o777])
def test_an_open_directory_is_refused_and_left_as_it_is(tmp_path: Path, shared: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(shared)
    with pytest.raises(PermissionError, match="open to others"):
        paths.private_dir(folder)
    assert mode(folder) == shared


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to uid 12345"):
        paths.private_dir(folder)


def test_a_link_is_refused_even_to_a_good_directory(tmp_path: Path) -> None:
    good = paths.private_dir(tmp_path / "good")
    link = tmp_path / "link"
    link.symlink_to(good)
    with pytest.raises(PermissionError, match="not a directory"):
        paths.private_dir(link)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="not a directory"):
        paths.private_dir(tmp_path / "file")


def test_users_share_the_parent_in_shared_memory_and_nothing_below_it() -> None:
    parent = Path(f"/dev/shm/pdctl-test-{os.getpid()}")
    try:
        made = paths.private_dir(parent / "0")
        assert mode(parent) == 0o1777
        assert mode(made) == 0o700
    finally:
        (parent / "0").rmdir()
        parent.rmdir()


def test_a_file_is_written_closed_and_leaves_nothing_else(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        paths.write_private(tmp_path / "a.json", b"one")
        paths.write_private(tmp_path / "a.json", b"two")
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"two"
    assert mode(tmp_path / "a.json") == 0o600


@given(st.integers(1, 2**32), st.integers(0, 2**63), st.sampled_from([".json", ".sock", ".pdrec"]))
def test_a_stem_names_the_process_it_was_made_of(pid: int, start: int, suffix: str) -> None:
    assert paths.parse_stem(paths.stem(pid, start) + suffix) == (pid, start)


@pytest.mark.parametrize(
    "name", ["x.json", "1.json", "1-.json", "-1.json", "1-2-3.json", "a-1.pdrec", ".1-2.json.9.part"]
)
def test_other_files_are_not_taken_for_a_rank(name: str) -> None:
    assert paths.parse_stem(name) is None


def test_the_directories_follow_the_environment() -> None:
    own = Path(f"/tmp/pdctl-{os.getuid()}")
    assert paths.run_dirs({}) == [own]
    assert paths.run_dirs({"XDG_RUNTIME_DIR": "/run/user/7"}) == [Path("/run/user/7/pdctl"), own]
    assert paths.run_dirs({"XDG_RUNTIME_DIR": "/run/user/7", "PDCTL_RUN_DIR": "/x"}) == [Path("/x")]
    assert paths.record_dir({}) == Path(f"/dev/shm/pdctl/{os.getuid()}")
    assert paths.record_dir({"PDCTL_RECORD_DIR": "/y"}) == Path("/y")


@pytest.mark.parametrize(
    ("variable", "below"),
    [("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"), ("XDG_STATE_HOME", ".local/state")],
)
def test_the_directories_of_the_user_follow_xdg(variable: str, below: str) -> None:
    assert paths.user_dir({variable: "/x", "HOME": "/home/a"}, variable) == Path("/x/pdctl")
    for unset in ({}, {variable: ""}, {variable: "relative"}):
        assert paths.user_dir({**unset, "HOME": "/home/a"}, variable) == Path("/home/a") / below / "pdctl"
    assert paths.user_dir({}, variable) == Path.home() / below / "pdctl"
