"""What people see of 512 ranks: one screen where all is well, and what is not well first."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from pdctl.probes.config.judge import judge as judge_config
from pdctl.probes.config.model import RankSettings
from pdctl.probes.queues.model import RoomSide, RoomSplit
from pdctl.probes.registry import PROBES
from pdctl.probes.stacks.judge import judge as judge_stacks
from pdctl.probes.stacks.model import RankLooks
from pdctl.protocol.documents import Document
from pdctl.protocol.model import Call, Frame, Identity, Status
from pdctl.protocol.requests import Settings
from pdctl.report.findings import finding
from pdctl.report.output import Format, Output
from tests.support import many
from tests.support.drawing import drawing

AMONG = many.identities()


@cache
def drawn(command: str, document: Callable[[], Document], width: int, form: Format = Format.TABLE) -> list[str]:
    """Return the lines of a document as its command draws them."""
    probe = next(entry for entry in PROBES if entry.command == command).load()
    out = Output(form, out=io.StringIO(), env={"COLUMNS": str(width)})
    return out.drawn(document(), drawing(probe, form)).splitlines()


def _stacks(among: list[Identity]) -> Document:
    places = [(Frame("recv", "a.py", 1),), (Frame("forward", "b.py", 2),)]
    looks = []
    for n, one in enumerate(among):
        seen = [
            Status(5 * 10**9 + k * 10**8, n + k, 5 * 10**9 + k * 10**8, Call(), places[(n + k) % 2], {}, identity=one,
                   seams=(), recording="", recording_off="", hook_errors={}, hooks_removed=(), faults=(), agent_cpu_s=0.1)
            for k in range(3)
        ]  # fmt: skip
        looks.append(RankLooks(one, "live", looks=tuple(seen)))
    return judge_stacks(looks)


def _config(among: list[Identity]) -> Document:
    last = among[-1].service
    values = [{"page_size": "1", "mem_fraction": "0.8" if one.service == last else "0.9"} for one in among]
    return judge_config([RankSettings(one, "live", body=Settings(v, {})) for one, v in zip(among, values, strict=True)])


WELL: dict[str, Callable[[], Document]] = {
    "ranks": lambda: many.ranks(AMONG),
    "diff-queues": lambda: many.queues(AMONG),
    "dump leaks": lambda: many.leaks(AMONG),
    "dump metadata": lambda: many.metadata(AMONG),
    "stuck": lambda: many.stuck(AMONG),
    "verify-routing": lambda: many.routing(AMONG),
    "stacks": lambda: _stacks(AMONG),
    "dump config": lambda: _config(AMONG),
}


@pytest.mark.parametrize("command", WELL)
@pytest.mark.parametrize("width", [80, 120])
def test_where_all_is_well_512_ranks_fit_on_one_screen(command: str, width: int) -> None:
    lines = drawn(command, WELL[command], width)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("command", ["ranks", "dump leaks"])
def test_wide_has_a_line_for_each_rank(command: str) -> None:
    lines = drawn(command, WELL[command], 80, Format.WIDE)
    assert sum("dp7 pp0 tp7 " in line for line in lines) >= 8


def test_ranks_that_are_not_well_come_first_by_name() -> None:
    dead = {"state": "dead", "reason": "its process has ended", "tick_age_s": None, "where": ""}
    stands = {"stands": True, "where": "is in recv (socket.py)"}
    lines = drawn("ranks", lambda: many.ranks(AMONG, decode_dp3_pp0_tp2=dead, decode_dp5_pp0_tp1=stands), 80)
    assert lines[0].startswith("decode@10.0.0.7:30000 on node7")
    assert "dp5 pp0 tp1" in lines[2]
    assert "live, stands" in lines[2]
    assert "dp3 pp0 tp2" in lines[3]
    assert "dead" in lines[3]
    assert "  dp3 pp0 tp2:" in lines
    assert "5 servers" in " ".join(lines)
    assert len(lines) <= 40


def _parted() -> Document:
    document = many.queues(AMONG)
    groups = list(document.groups)
    sides = tuple(RoomSide(f"tp{tp}", "kept" if tp < 2 else "committed", slot=3, found=7 * (tp > 1)) for tp in range(8))
    for n in range(20, 40):
        row = replace(groups[n].queues[0], verdict="diverged", text="room 7 is on tp0 and tp1 only")
        split = RoomSplit(7, "r7", sides)
        groups[n] = replace(groups[n], verdict="DIVERGED", round=812, queues=(row,), splits=(split,))
    found = tuple(
        finding("PD101", "They differ.", group=group.title, rooms=(7,))
        for group in groups
        if group.verdict == "DIVERGED"
    )
    return replace(document, groups=tuple(groups), findings=found)


def test_groups_that_parted_come_first_and_the_rest_is_counted() -> None:
    lines = drawn("diff-queues", _parted, 120)
    text = "\n".join(lines)
    assert text.index("DIVERGED at round 812") < text.index("17 groups   DIVERGED") < text.index("44 groups   AGREE")
    assert text.count("DIVERGED at round") == 3
    assert "tp0 and tp1 kept it  slot 3 held 0" in text
    assert "tp2-7 committed it" in text
    assert "decode dp7 pp0 · attention-TP group of 8 · decode@10.0.0.2:30000" in text
    assert "… and 17 more of PD101 (-o json shows all): decode dp7 pp0 of decode@10.0.0.2:30000" in text
    assert len(lines) < 80


def test_a_queue_of_many_ranks_has_one_column() -> None:
    def wide_group() -> Document:
        one = many.group(AMONG[0], size=64)
        row = replace(one.queues[0], lengths=(*(4 for _ in range(63)), 5), verdict="diverged", text="x")
        return replace(many.queues(AMONG[:1]), groups=(replace(one, verdict="WAITING", queues=(row,)),))

    lines = drawn("diff-queues", wide_group, 80)
    assert any("5 (tp63), 4 (the others)" in line for line in lines)
    assert any(line.startswith("  now  tp0-63  waits in broadcast") for line in lines)
    assert max(map(len, lines)) <= 80


def test_leaks_come_first_and_who_was_not_judged_is_said() -> None:
    def some() -> Document:
        document = many.leaks(AMONG)
        rows = list(document.ranks)
        rows[500] = replace(rows[500], slots_lost=2)
        rows[1] = replace(rows[1], judged=False, why="no answer within 2 s")
        return replace(document, ranks=tuple(rows))

    lines = drawn("dump leaks", some, 120)
    assert lines[2].split()[:5] == ["decode", "dp6", "pp0", "tp4", "1"]
    assert "not judged: no answer" in lines[3]
    assert any(" 510 " in line for line in lines[4:])


def test_a_slot_that_is_wrong_is_told_with_its_rank_and_the_silent_are_named() -> None:
    def some() -> Document:
        document = many.metadata(AMONG)
        slots, ranks = list(document.slots), list(document.ranks)
        slots[100] = replace(slots[100], verdict="collision", text="room 9 is in decode.transfer")
        ranks[300] = replace(ranks[300], silence="no answer within 2 s")
        return replace(document, slots=tuple(slots), ranks=tuple(ranks))

    lines = drawn("dump metadata", some, 120)
    assert lines[0] == "decode dp5 pp0 tp4 · decode@10.0.0.4:30000 · 1 rank"
    assert any("collision" in line for line in lines)
    assert any(line.startswith("decode dp6 pp0 tp2 · decode@10.0.0.2:30000 · sglang") for line in lines)


def test_rooms_that_stand_still_or_are_not_well_are_shown_first() -> None:
    def still() -> Document:
        document = many.stuck(AMONG)
        last = replace(document.requests[-1], progress="still")
        return replace(document, requests=(*document.requests[:-1], last))

    def conflict() -> Document:
        document = many.routing(AMONG)
        return replace(document, rooms=(*document.rooms[:-1], replace(document.rooms[-1], verdict="CONFLICT")))

    lines = drawn("stuck", still, 120)
    assert lines[0].startswith("room 7001999")
    assert any(
        line.split() == ["decode", "transfer", "WaitingForInput", "moving", "1999", "48", "30.0", "s"] for line in lines
    )
    lines = drawn("verify-routing", conflict, 120)
    assert next(line for line in lines if "CONFLICT" in line).startswith("9999")
    assert lines[-1] == "all 2000 rooms: 1999 AGREE, 1 CONFLICT"


def test_servers_that_are_set_up_alike_are_one_column() -> None:
    lines = drawn("dump config", WELL["dump config"], 120)
    assert any("prefill@10.0.0.0:30000 +6" in line and "decode@10.0.0.7:30000" in line for line in lines)
