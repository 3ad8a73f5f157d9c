"""Which finding follows from which: one cause with its consequences behind it, and twins that stay apart."""

from __future__ import annotations

import pytest
from rich.console import Console

from pdctl.report import drawing
from pdctl.report.causes import ORDER, REPEATED, RULES, connect
from pdctl.report.findings import Finding, Level, catalogue, finding

DECODE, OTHER_DECODE, PREFILL = "decode dp0 of d/1", "decode dp0 of d/2", "prefill dp0 of p/1"


def told(*findings: Finding) -> list[str]:
    """Return what connect makes of them: ``CODE`` or ``CODE<CAUSE``, in order."""
    return [f"{one.code}<{one.follows}" if one.follows else one.code for one in connect(findings)]


def drawn(*findings: Finding) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as text:
        for part in (*drawing.headline(connect(findings)), *drawing.findings(connect(findings), below=True)):
            console.print(part)
    return "\n".join(line.rstrip() for line in text.get().split("\n"))


def test_rules_name_codes_that_there_are_and_run_one_way() -> None:
    causes = {code for rule in RULES for code in rule.causes}
    consequences = {code for rule in RULES for code in rule.consequences}
    assert causes == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)
    assert causes | consequences | set(REPEATED) <= set(catalogue())


@pytest.mark.parametrize(
    "cause", ["PD101", "PD103", "PD104", "PD105", "PD107", "PD108", "PD160", "PD161", "PD110", "PD111"]
)
@pytest.mark.parametrize("code", ["PD141", "PD142", "PD143", "PD155"])
def test_a_group_that_does_not_go_on_explains_the_waits_of_its_requests(cause: str, code: str) -> None:
    group = finding(cause, "They differ.", units=(DECODE,))
    here = finding(code, "Waits.", rooms=(7,), units=(DECODE, PREFILL))
    there = finding(code, "Waits.", rooms=(8,), units=(PREFILL, DECODE))
    elsewhere = finding(code, "Waits.", rooms=(7,), units=(OTHER_DECODE,))
    assert told(here, group, there) == [cause, f"{code}<{cause}", f"{code}<{cause}"]
    assert sorted(told(group, elsewhere)) == sorted([cause, code])


def test_what_follows_from_a_consequence_follows_from_the_cause() -> None:
    parted = finding("PD101", "Parted.", rooms=(7,), units=(DECODE,))
    late = finding("PD110", "Late.", units=(DECODE,))
    silent = finding("PD112", "Silent.", ranks=("decode dp0 pp0 tp1",))
    lost = finding("PD142", "Lost.", rooms=(9,), units=(PREFILL, DECODE))
    assert told(silent, lost, late, parted) == ["PD101", "PD112<PD101", "PD142<PD101", "PD110<PD101"]


def test_a_finding_without_its_server_is_of_the_only_one_that_is_known() -> None:
    group = finding("PD101", "Parted.", units=(DECODE,))
    stack = finding("PD160", "Stand.", ranks=("decode dp0 pp0 tp0", "decode dp0 pp0 tp1"))
    assert told(group, stack) == ["PD101", "PD160<PD101"]
    of_another = finding("PD141", "Waits.", units=(OTHER_DECODE,))
    assert told(group, stack, of_another) == ["PD101", "PD160", "PD141"]
    prefill = finding("PD143", "Waits.", group="prefill dp0 pp0")
    assert told(group, prefill) == ["PD101", "PD143"]


@pytest.mark.parametrize("code", ["PD141", "PD142", "PD143"])
@pytest.mark.parametrize("cause", ["PD120", "PD123", "PD124", "PD127", "PD140"])
def test_causes_of_single_rooms_explain_those_rooms_only(cause: str, code: str) -> None:
    routed = finding(cause, "Routed.", rooms=(7,), units=(DECODE,))
    assert code in told(routed, finding(code, "Waits.", rooms=(7, 8), units=(DECODE,)))  # 8 has another cause
    assert f"{code}<{cause}" in told(routed, finding(code, "Waits.", rooms=(7,), units=(DECODE,)))
    assert code in told(routed, finding(code, "Waits.", rooms=(8,), units=(DECODE,)))


def test_a_server_that_was_replaced_explains_waits_between_the_two_and_no_others() -> None:
    replaced = finding("PD144", "Replaced.", rooms=(7,), units=(DECODE, PREFILL))
    between = finding("PD141", "Waits.", rooms=(8,), units=(PREFILL, DECODE))
    with_another = finding("PD142", "Waits.", rooms=(9,), units=(DECODE, "prefill dp0 of p/2"))
    assert told(replaced, between, with_another) == ["PD144", "PD141<PD144", "PD142"]


def test_the_worst_with_what_follows_comes_first_and_nothing_is_lost() -> None:
    full = finding("PD140", "Full.", rooms=(7, 8), units=(DECODE,))
    lost = finding("PD142", "Lost.", rooms=(8,), units=(DECODE,))
    way = finding("PD130", "Way.", units=(DECODE,))
    held = finding("PD102", "Held.", units=(DECODE,))
    assert told(held, way, full, lost) == ["PD140", "PD142<PD140", "PD130", "PD102"]
    assert {one.level for one in connect([full, lost])} == {full.level, lost.level}


def test_what_is_said_twice_is_said_once() -> None:
    one = finding("PD110", "Late.", units=(DECODE,))
    assert told(one, one) == ["PD110"]
    assert connect(connect([one, finding("PD141", "Waits.", units=(DECODE,))])) == connect(
        [one, finding("PD141", "Waits.", units=(DECODE,))]
    )


def test_one_next_step_stands_at_the_top_and_a_consequence_is_a_line_without_one() -> None:
    parted = finding("PD101", "Parted.", units=(DECODE,))
    waits = finding("PD141", "Room 7 waits in decode.transfer of decode dp0: nothing ends it. More.", units=(DECODE,))
    alone = finding("PD130", "Way.")
    lines = [line.strip() for line in drawn(waits, alone, parted).splitlines()]
    assert lines[0] == "PD101  Parted."
    assert lines[1] == f"Next: {parted.next_step}"
    assert [line for line in lines if "PD141" in line] == [
        "so also PD141: Room 7 waits in decode.transfer of decode dp0"
    ]
    assert [line for line in lines if line.startswith("Next")] == [f"Next: {one.next_step}" for one in (parted, alone)]


def test_a_consequence_that_begins_with_a_name_says_what_is_of_it() -> None:
    parted = finding("PD101", "Parted.", units=(DECODE,))
    gone = finding("PD112", "decode dp0 pp0 tp1: process has ended.", units=(DECODE,))
    assert "so also PD112: decode dp0 pp0 tp1: process has ended\n" in drawn(parted, gone)


def test_a_server_that_ended_comes_before_what_else_is_wrong_on_the_other_side() -> None:
    parted = finding("PD101", "Parted. More.", units=(DECODE,))
    ended = finding("PD113", "Ended.", units=(PREFILL,))
    lost = finding("PD142", "Lost.", rooms=(7,), units=(DECODE, PREFILL))
    assert told(parted, lost, ended) == ["PD113", "PD101", "PD142<PD101"]
    lines = [line.strip() for line in drawn(parted, lost, ended).splitlines()]
    assert lines[0] == "PD113  Ended."
    assert [line for line in lines if line.startswith("Then: ")] == ["Then: PD101 Parted (below)"]
    here = finding("PD113", "Ended.", units=(DECODE,))
    assert told(here, parted) == ["PD101", "PD113<PD101"], "it aborted since its lists differed"
    stages = finding("PD115", "Parted.", rooms=(7,), units=(DECODE,))
    assert told(here, stages) == ["PD115", "PD113<PD115"], "it aborted since its batches differed"
    only_warned = finding("PD113", "Ended.", units=(PREFILL,), level=Level.WARNING)
    assert told(parted, only_warned) == ["PD101", "PD113"]


def test_the_same_of_many_ranks_is_one_line_below_its_cause() -> None:
    parted = finding("PD101", "Parted.", units=(DECODE,))
    gone = [finding("PD112", f"decode dp0 pp0 tp{n}: process has ended.", units=(DECODE,)) for n in range(3)]
    also = [line.strip() for line in drawn(parted, *gone).splitlines() if "PD112" in line]
    assert also == ["so also PD112: decode dp0 pp0 tp0-2: process has ended"]


def test_information_alone_has_no_headline() -> None:
    full = finding("PD140", "Full.", rooms=(7,))
    assert drawn(full).splitlines()[:2] == ["", "PD140  Full."]
    assert f"Next: {full.next_step}" in drawn(full)
    assert drawn(full, finding("PD142", "Lost.", rooms=(7,))).splitlines()[1] == f"Next: {full.next_step}"


def test_two_requests_of_one_room_have_one_next_step_and_a_shared_rid_beside_it_keeps_its_own() -> None:
    room, earlier = finding("PD127", "Two.", rooms=(7,)), finding("PD147", "An earlier one.", rooms=(7,))
    rid = finding("PD147", "One rid.", rooms=(7, 8))
    assert [found.follows for found in connect([room, earlier])] == ["", "PD127"]
    assert [found.follows for found in connect([room, rid])] == ["", ""]
