"""Any user may call a process what he likes: that hides no other process, and ends no command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pdctl.introspect.find import Candidate, candidates
from pdctl.protocol.processes import NO_PROCESS, look
from tests.support.patience import until


def test_a_process_that_has_ended_and_has_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/\xff\xfe"
    shutil.copy(shutil.which("true") or "", program)
    ended = subprocess.Popen([program])
    try:
        until("it has ended, and nobody has asked how", lambda: look(ended.pid).state == "Z")
        assert ended.pid not in {one.pid for one in candidates()}
    finally:
        ended.wait()


@pytest.mark.parametrize(("title", "place"), [("_DP3_TP12", 12), ("_TP" + "9" * 180, 0), ("_TP\u0663", 0), ("", 0)])
def test_a_place_is_a_number_that_a_rank_may_have(title: str, place: int) -> None:
    assert Candidate(7, f"sglang::scheduler{title}", NO_PROCESS, 1).place("TP") == place
