"""What clean looks at: directories of this user alone, since another could have made the default ones first."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.targets import cleanup


@pytest.mark.parametrize("how", ["a link", "open"])
def test_nothing_is_removed_in_a_directory_that_others_could_have_made(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "4000000-7.stacks").touch()
    assert cleanup._files(folder) == [folder / "4000000-7.stacks"]
    theirs = tmp_path / "theirs"
    if how == "open":
        theirs = folder
        folder.chmod(0o755)
    else:
        theirs.symlink_to(folder)
    assert cleanup._files(theirs) == []
