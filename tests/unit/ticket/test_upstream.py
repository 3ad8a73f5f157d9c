"""The bug report for the engine's tracker: what it has, and that nothing of others gets out of its blocks or names a host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec

from pdctl.replay.bisect import FAILS, PASSES, Judged, judge
from pdctl.ticket.gather import gather
from pdctl.ticket.model import Case
from pdctl.ticket.reproduce import Reproduced, Side, reproduce
from pdctl.ticket.upstream import MOST_CHARS, upstream

HANG = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
SALT = "ab" * 16
ROOM = 16851422098683615


def hang() -> Case:
    return gather(HANG, timeout_s=60)


def test_the_recorded_hang_is_told_whole() -> None:
    bisected = judge("x", [Judged(engine="0.5.12.post1", outcome=FAILS), Judged(engine="0.5.13", outcome=PASSES)])
    text = upstream(hang(), reproduce(HANG, timeout_s=60), bisected, SALT)
    assert text.startswith("# [Bug] PD disaggregation: metadata landed on one rank before the other")
    assert "(`sglang 0.5.12.post1`)" in text.splitlines()[0]
    assert f"round 247  tp0  {ROOM}  SUCCESS, reduced SUCCESS: committed" in text
    assert f"round 247  tp1  {ROOM}  SUCCESS, reduced SUCCESS, slot holds 0: kept" in text
    assert "no-gate (SGLang <= 0.5.12.post1): BROKEN" in text
    assert "gate-zero (SGLang >= 0.5.13): HOLDS" in text
    assert "0.5.13 is the first version on which the test passes" in text
    assert "PR 26394" in text
    told = f"delay-metadata, placed in prefill dp0 pp0 tp0, acted 1 time, the last time on room {ROOM}"
    assert told in text.partition("pdctl injected faults")[2]
    compile(text.partition("```python\n")[2].partition("\n```\n")[0], "test_ranks.py", "exec")


def test_names_and_markup_of_others_do_not_come_through() -> None:
    case = hang()
    evil = msgspec.structs.replace(case.ranks[0], host="gpu-secret-17", engine="sg](http://x)<b>", engine_version="9")
    [worst, *_] = case.findings
    worst = msgspec.structs.replace(
        worst, summary="on gpu-secret-17 at 10.9.8.7\n```\n<script>", evidence=("````", "\x1b[2J")
    )
    check = msgspec.structs.replace(case.check, findings=(worst,))
    made = Reproduced(queue="decode.transfer", rounds=((1, Side("tp0", ("```x",)), Side("tp1", ())),))
    text = upstream(replace(case, ranks=(evil,), check=check), made, None, SALT)
    assert "gpu-secret-17" not in text
    assert "10.9.8.7" not in text
    assert "\x1b" not in text
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    assert "<script>" not in outside
    assert "```x" not in outside
    assert "(`sg](http://x)<b> 9`)" in text.splitlines()[0]


def test_a_healthy_trace_says_that_nothing_was_found() -> None:
    quiet = replace(hang(), check=msgspec.structs.replace(hang().check, findings=()))
    text = upstream(quiet, Reproduced(lacking=("the recordings have no round in which ranks differ",)), None, SALT)
    assert "nothing was found" in text.splitlines()[0]
    assert "injected" not in text
    assert "no round in which ranks differ" in text


def test_a_test_that_is_too_long_is_left_out() -> None:
    text = upstream(hang(), Reproduced(test="x" * MOST_CHARS), None, SALT)
    assert len(text) < MOST_CHARS
    assert "pdctl replay FILE --emit-test" in text
