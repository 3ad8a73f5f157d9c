"""What ``pdctl ranks`` makes of answers and recordings, and how it is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.probes.ranks.judge import RanksDocument, judge
from pdctl.probes.ranks.probe import PROBE
from pdctl.probes.turns import call_words
from pdctl.protocol.model import Call, Frame, GroupInfo, Seam, Status
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.recording import format as f
from pdctl.recording.reader import read
from pdctl.recording.writer import RecordingWriter
from pdctl.report.output import Format, Output
from pdctl.targets.registration import nameless
from tests.support.drawing import drawing
from tests.support.identities import identity


def status(**changes: Any) -> Status:
    base = Status(
        identity=identity(), mono_ns=10 * 10**9, ticks=5, tick_mono_ns=9 * 10**9, call=Call(), stack=(), rounds={}, seams=(),
        recording="/r", recording_off="", hook_errors={}, hooks_removed=(), faults=(), agent_cpu_s=0.002,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def answered(**changes: Any) -> Answer[Status]:
    return Answer(FoundRank(identity(), "live", "ipc://x"), status(**changes))


def silent(state: str, silence: Silence, reason: str) -> Answer[Status]:
    return Answer(FoundRank(identity(), state), None, silence, reason)


def drawn(document: RanksDocument, columns: int = 80, form: Format = Format.TABLE) -> str:
    out = io.StringIO()
    Output(form, out=out, env={"COLUMNS": str(columns)}).document(document, None, drawing(PROBE, form))
    return out.getvalue()


def test_a_rank_that_answers() -> None:
    got = judge([answered(rounds={"decode.transfer/attn-tp": 7, "decode.prealloc/attn-tp": -1})], [None])
    [row] = got.ranks
    assert (row.state, row.source, row.reason) == ("live", "agent", "")
    assert row.tick_age_s == pytest.approx(1.0)
    assert row.agent_cpu_share == pytest.approx(0.0002)
    assert row.rounds == {"decode.transfer/attn-tp": 7}
    assert not got.partial
    assert not PROBE.partial(got)


def test_a_rank_that_never_turned_has_no_age() -> None:
    [row] = judge([answered(tick_mono_ns=0)], [None]).ranks
    assert row.tick_age_s is None


@pytest.mark.parametrize(
    ("state", "silence", "shown"),
    [
        ("live", Silence.TIMED_OUT, "silent"),
        ("live", Silence.GARBAGE, "silent"),
        ("dead", Silence.DEAD, "dead"),
        ("no agent", Silence.NO_AGENT, "no agent"),
    ],
)
def test_silence_keeps_its_reason(state: str, silence: Silence, shown: str) -> None:
    got = judge([answered(), silent(state, silence, "because")], [None, None])
    assert (got.ranks[1].state, got.ranks[1].reason, got.ranks[1].source) == (shown, "because", "")
    assert PROBE.partial(got)
    assert "because" in drawn(got)


def test_a_dead_rank_s_age_is_counted_by_the_wall_clock_of_its_recording(tmp_path: Path) -> None:
    writer = RecordingWriter.create(tmp_path / "r", msgspec.json.encode(identity()), size=f.MIN_SIZE)
    recording = read(tmp_path / "r")
    writer.pulse(4, recording.start_mono_ns + 3 * 10**9)
    recording = read(tmp_path / "r")
    answer = silent("dead", Silence.DEAD, "process has ended")
    got = judge([answer], [recording], now_wall_ns=recording.start_wall_ns + 63 * 10**9)
    assert got.ranks[0].tick_age_s == pytest.approx(60.0)
    assert got.ranks[0].source == "recording"
    assert PROBE.partial(got)
    asked_for = judge([silent("recorded", Silence.RECORDED, "")], [recording])
    assert not PROBE.partial(asked_for), "its recording is what was asked for"
    assert PROBE.partial(judge([silent("recorded", Silence.RECORDED, "")], [None]))


def test_a_file_that_is_not_understood_makes_the_answer_partial() -> None:
    assert PROBE.partial(judge([answered()], [None], problems=("x",)))


def test_ages_of_recordings_alone_count_to_the_newest_of_them(tmp_path: Path) -> None:
    """Which were copied long ago, for all that is known."""
    recordings = []
    for number in range(2):
        path = tmp_path / f"{number}.pdrec"
        writer = RecordingWriter.create(path, msgspec.json.encode(identity(tp=number)), size=f.MIN_SIZE)
        started = read(path).start_mono_ns
        writer.pulse(3, started + number * 5 * 10**9)
        writer.stop()
        recordings.append(read(path))
    document = judge([silent("recorded", Silence.RECORDED, "")] * 2, recordings)
    ages = [row.tick_age_s or 0.0 for row in document.ranks]
    assert ages[1] == 0.0
    assert 4.0 < ages[0] < 6.0


def test_as_a_stage_of_check_each_silent_rank_is_a_finding() -> None:
    apart = answered(hook_errors={"poll": 1})
    outcome = PROBE.outcome(judge([answered(), silent("dead", Silence.DEAD, "it has ended"), apart], [None] * 3))
    assert (outcome.said, [found.code for found in outcome.findings]) == ("2 of 3 ranks answer", ["PD112"])
    assert "it has ended" in outcome.findings[0].summary
    assert outcome.problems == (f"{apart.rank.identity.label}: pdctl's hooks failed there",)


def test_as_a_stage_of_check_hosts_that_give_no_rank_are_not_counted_as_ranks() -> None:
    def nameless_one(name: str, endpoint: str = "") -> Answer[Status]:
        return Answer(FoundRank(nameless(name), "live", endpoint), None, Silence.REFUSED, "no answer")

    there = [nameless_one("pod/a"), nameless_one("gpu1")]
    outcome = PROBE.outcome(judge([answered(), *there], [None] * 3))
    assert outcome.said == "1 of 1 ranks answer; none seen on host gpu1, and on pod a"
    assert [found.code for found in outcome.findings] == ["PD112", "PD112"], "as before"
    assert PROBE.outcome(judge(there[:1], [None])).said == "no ranks; none seen on pod a"
    endpoint = nameless_one("a:1", "tcp://a:1")
    assert PROBE.outcome(judge([answered(), endpoint], [None] * 2)).said == "1 of 2 ranks answer"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call(op="all_reduce", group="attn-tp", elements=3, inside="poll of decode.transfer"),
         "poll of decode.transfer: all_reduce of 3, group attn-tp"),
        (Call(op="broadcast"), "broadcast"),
        (Call(inside="model forward"), "model forward"),
        (Call(), "spin (engine/loop.py:7)"),
    ],
)  # fmt: skip
def test_a_call_in_words(call: Call, words: str) -> None:
    assert call_words(call, (Frame("spin", "engine/loop.py", 7),)) == words


def test_eighty_columns_hold_the_longest_real_labels() -> None:
    who = identity(
        dp=15, dp_size=16, pp=3, pp_size=4, cp=1, cp_size=2, tp=7, tp_size=8, pid=4194304, service="decode a:1"
    )
    call = Call(op="broadcast_object_list", group="attn-cp", elements=123456, inside="recv_requests")
    rounds = {
        f"{queue}/{group}": 12345678
        for queue in ("decode.prealloc", "decode.transfer")
        for group in ("attn-tp", "attn-cp")
    }
    answer = Answer(FoundRank(who, "live"), status(identity=who, call=call, rounds=rounds))
    text = drawn(judge([answer], [None]))
    assert max(map(len, text.splitlines())) <= 80
    assert "transfer/attn-cp 12345678" in text


def test_what_is_out_of_the_ordinary_is_said_below() -> None:
    text = drawn(
        judge([answered(recording_off="no space", hook_errors={"gate": 3}, hooks_removed=("gate",))] * 2, [None, None]),
        200,
    )
    assert "every rank:\n    recording off: no space" in text
    assert "hook gate failed 3 times and removed itself" in text


def test_wide_shows_what_is_missing() -> None:
    text = drawn(
        judge([answered(seams=(Seam("gate", False, "no such function"), Seam("poll", True)))], [None]), 80, Format.WIDE
    )
    assert "seams missing: gate (no such function)" in text
    assert "seams present: poll" in text


def test_a_rank_that_the_log_calls_otherwise_has_both_names() -> None:
    groups = (GroupInfo("attn-tp", (1,), "w"), GroupInfo("tp", (0, 1), "w"))
    assert identity(dp=1, world_rank=1, groups=groups).logged == "DP1 TP1"
    assert identity(dp=0, world_rank=0, groups=(GroupInfo("attn-tp", (0,), "w"), groups[1])).logged == ""
    assert identity(tp=1, world_rank=1, groups=(groups[1],)).logged == "", "it counts as pdctl does"
    assert identity(dp=1, world_rank=1).logged == "", "its groups are not known"
