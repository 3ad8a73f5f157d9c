"""The verdict of a drill, over every way a journal can come out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.inject.drill.judge import judge, unsteady
from pdctl.inject.drill.records import (
    AFTER,
    BROKEN,
    DURING,
    HOLDS,
    INCONCLUSIVE,
    STEADY,
    STEPS,
    End,
    FaultLine,
    Healed,
    LoadLine,
    Look,
    Manifest,
    Placed,
    Problem,
    Record,
    Step,
    Stopped,
    Verdict,
)
from pdctl.inject.drill.schema import Drill, Expect, FaultSpec, LabLoad, LoadSpec
from pdctl.report.findings import finding

DIVERGED = finding("PD101", "room 7 landed on tp0 before tp1", group="decode")
WAITING = finding("PD110", "tp0 has waited 12 s for tp1", group="decode")
GATE = finding("PD102", "room 7 held by the gate on tp1", group="decode")
FAULT = FaultSpec(kind="delay-metadata", rank=("decode:tp1",), delay="2s")


@dataclass(frozen=True)
class Story:
    """A drill that holds, unless told otherwise; ``records`` is its journal."""

    fault: FaultSpec | None = FAULT
    load: str | LoadSpec = "lab"
    expect: Expect = field(default_factory=Expect)
    control: bool = False
    looks: dict[str, tuple[Look, ...]] = field(default_factory=dict)
    loads: dict[str, LoadLine | None] = field(default_factory=dict)
    counts: tuple[FaultLine, ...] = (FaultLine(at=3, final=True, visits=8, eligible=4, fired=1, rooms=(7,)),)
    healed: tuple[Healed, ...] = (Healed(at=3, clean=True),)
    placed: bool = True
    more: tuple[Record, ...] = ()
    end: bool = True

    @property
    def records(self) -> list[Record]:
        drill = Drill(name="x", about="y", fault=self.fault, load=self.load, expect=self.expect)
        records: list[Record] = [
            Manifest(pdctl="1", python="3", started=1.0, seed=1, control=self.control, drill=drill)
        ]
        for at, step in enumerate(STEPS):
            records.append(Step(at=at, step=step))
            if step == "fault" and self.placed and self.fault is not None:
                records.append(Placed(at=at, fault="f", kind="delay-metadata", targets=("a",), on=("b",)))
            if step == "heal" and self.fault is not None:
                records += [*self.counts, *self.healed]
            if step in (STEADY, DURING, AFTER):
                records += self.looks.get(step, (look(step), look(step)))
                line = self.loads.get(step, load(step))
                if line is not None and self.load != "none":
                    records.append(line)
        return [*records, *self.more, *([End(at=9)] if self.end else [])]

    def verdict(self) -> Verdict:
        return judge(self.records)


def look(step: str, **more: Any) -> Look:
    return Look(at=1, step=step, **more)


def load(step: str, sent: int = 8, **more: Any) -> LoadLine:
    lost = sum(more.get(name, 0) for name in ("failed", "wrong", "unfinished"))
    return LoadLine(at=1, step=step, ended=more.pop("ended", step), sent=sent, completed=sent - lost, **more)


def test_everything_as_it_must_be_holds() -> None:
    verdict = Story().verdict()
    assert verdict.verdict == HOLDS
    text = "\n".join(verdict.evidence)
    assert "delay-metadata fired 1 of 4 eligible, rooms 7" in text
    assert text.count("8 of 8 requests completed") == 3


def test_the_gate_at_work_is_no_damage() -> None:
    verdict = Story(looks={DURING: (look(DURING, findings=(GATE,)),)}).verdict()
    assert verdict.verdict == HOLDS
    assert "PD102 seen" in "\n".join(verdict.evidence)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"looks": {STEADY: ()}}, "no steady state was seen"),
        ({"looks": {STEADY: (look(STEADY, findings=(DIVERGED,)),)}}, "nothing was injected: PD101"),
        ({"looks": {STEADY: (look(STEADY, findings=(WAITING,)), look(STEADY))}}, "nothing was injected: PD110"),
        (
            {"looks": {STEADY: (look(STEADY, silent=("decode tp1: timed out",)),)}},
            "no answer from decode tp1: timed out",
        ),
        (
            {"looks": {STEADY: (look(STEADY, problems=("decode tp1: no rounds",)),)}},
            "not judged: decode tp1: no rounds",
        ),
        ({"loads": {STEADY: None}}, "no load was sent"),
        ({"loads": {STEADY: load(STEADY, failed=1)}}, "1 of 8 requests failed"),
        ({"loads": {STEADY: load(STEADY, wrong=2)}}, "2 of 8 requests had wrong tokens"),
        ({"loads": {STEADY: load(STEADY, unfinished=3)}}, "3 of 8 requests did not finish"),
        ({"loads": {STEADY: load(STEADY, sent=0)}}, "no load was sent"),
        ({"placed": False}, "the fault was not placed"),
        ({"counts": ()}, "nothing is known of what the fault did"),
        ({"counts": (FaultLine(at=1),)}, "never visited"),
        ({"counts": (FaultLine(at=1, visits=5),)}, "none of its 5 visits was of a rank and room aimed at"),
        ({"counts": (FaultLine(at=1, visits=5, eligible=2),)}, "2 visits were eligible, and it acted on none"),
        ({"more": (Problem(at=1, step="fault", message="no seam fault.abort"),)}, "fault: no seam fault.abort"),
        ({"end": False}, "the journal ends in after"),
        ({"looks": {DURING: ()}}, "nobody looked while"),
        ({"looks": {AFTER: ()}}, "nobody looked after"),
        ({"healed": ()}, "was not healed"),
        ({"healed": (Healed(at=1, clean=False, left=("prefill tp0 may hold a fault",)),)}, "may still be in place"),
        (
            {"looks": {AFTER: (look(AFTER, silent=("decode tp1: timed out",)),)}},
            "after healing no answer from decode tp1",
        ),
        ({"looks": {AFTER: (look(AFTER, problems=("gap",)),)}}, "after healing not judged: gap"),
        ({"loads": {DURING: None}}, "no requests were sent while"),
        ({"loads": {AFTER: None}}, "no requests were sent after"),
        ({"loads": {AFTER: load(AFTER, sent=0)}}, "no requests were sent after"),
    ],
)
def test_what_shows_nothing_is_inconclusive(change: dict[str, Any], says: str) -> None:
    verdict = replace(Story(), **change).verdict()
    assert (verdict.verdict, says in verdict.reason) == (INCONCLUSIVE, True), verdict.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"looks": {DURING: (look(DURING, findings=(DIVERGED,)), look(DURING))}}, "PD101 room 7 landed on tp0"),
        ({"looks": {AFTER: (look(AFTER, findings=(DIVERGED,)), look(AFTER))}}, "PD101 room 7 landed on tp0"),
        ({"looks": {AFTER: (look(AFTER), look(AFTER, findings=(WAITING,)))}}, "PD110 tp0 has waited"),
        ({"looks": {AFTER: (look(AFTER, dead=("decode tp1",), silent=("decode tp1: dead",)),)}}, "decode tp1 has died"),
        ({"looks": {DURING: (look(DURING, dead=("decode tp1",)),)}}, "decode tp1 has died"),
        ({"looks": {AFTER: (look(AFTER, lingering={6: ("prefill pp1",)}),)}}, "room 6 stays on prefill pp1"),
        ({"loads": {DURING: load(DURING, failed=1)}}, "1 of 8 requests sent while the fault was in place failed"),
        ({"loads": {DURING: load(DURING, wrong=1)}}, "had wrong tokens"),
        ({"loads": {DURING: load(DURING, unfinished=1, ended="")}}, "did not finish"),
        ({"loads": {AFTER: load(AFTER, unfinished=1)}}, "1 of 8 requests sent after healing did not finish"),
        ({"more": (Stopped(at=1, why="decode tp1 has taken no turn for 20 s"),)}, "stopped: decode tp1"),
    ],
)
def test_damage_is_broken(change: dict[str, Any], says: str) -> None:
    verdict = replace(Story(), **change).verdict()
    assert (verdict.verdict, says in verdict.reason) == (BROKEN, True), verdict.reason
    control = replace(Story(control=True), **change).verdict()
    assert control.verdict == BROKEN
    assert "the control broke, as it must" in control.reason


def test_damage_without_a_fault_that_fired_is_not_the_faults() -> None:
    story = Story(looks={DURING: (look(DURING, findings=(DIVERGED,)),)}, counts=(FaultLine(at=1, visits=3),))
    assert story.verdict().verdict == INCONCLUSIVE


def test_a_control_that_does_not_break_is_inconclusive() -> None:
    verdict = Story(control=True).verdict()
    assert verdict.verdict == INCONCLUSIVE
    assert "the control did not break" in verdict.reason


def test_what_passes_while_the_fault_is_in_place_and_after_it() -> None:
    for step in (DURING, AFTER):
        looks = (look(step, findings=(WAITING,)), look(step))
        assert Story(looks={step: looks}).verdict().verdict == HOLDS, f"only the end of {step} counts"
    lingering = (look(AFTER, lingering={6: ("prefill pp1",)}), look(AFTER))
    assert Story(looks={AFTER: lingering}).verdict().verdict == HOLDS


def test_the_drill_says_which_findings_mean_broken() -> None:
    only = Expect(broken=("PD110",))
    assert Story(expect=only, looks={DURING: (look(DURING, findings=(WAITING,)),)}).verdict().verdict == BROKEN
    assert Story(expect=only, looks={DURING: (look(DURING, findings=(DIVERGED,)),)}).verdict().verdict == HOLDS


@pytest.mark.parametrize("name", ["failed", "wrong", "unfinished"])
@pytest.mark.parametrize("wanted", ["finish", "end", "end in fault"])
@pytest.mark.parametrize("ended", [DURING, AFTER])
def test_requests_that_only_must_end(name: str, wanted: str, ended: str) -> None:
    story = Story(expect=Expect(requests=wanted), loads={DURING: load(DURING, ended=ended, **{name: 1})})
    in_time = wanted != "end in fault" or ended == DURING
    holds = name == "failed" and wanted != "finish" and in_time
    assert story.verdict().verdict == (HOLDS if holds else BROKEN)


def test_requests_after_healing_must_always_finish() -> None:
    assert Story(expect=Expect(requests="end"), loads={AFTER: load(AFTER, failed=1)}).verdict().verdict == BROKEN


def test_the_operators_own_traffic_is_not_counted() -> None:
    assert Story(load="none").verdict().verdict == HOLDS
    assert Story(load="none", looks={AFTER: (look(AFTER, lingering={7: ("d",)}),)}).verdict().verdict == BROKEN


def test_a_load_that_is_the_cause_must_have_broken_something() -> None:
    story = Story(fault=None, load=LoadSpec(lab=LabLoad(room=7, prefill_dp=0)), expect=Expect(requests="end"))
    assert story.verdict().verdict == INCONCLUSIVE
    for cause in ("misrouted", "aborted"):
        caused = replace(story, loads={DURING: load(DURING, 1, failed=1, **{cause: 1})})
        assert caused.verdict().verdict == HOLDS
        stays = replace(story, loads={DURING: load(DURING, 1, unfinished=1, **{cause: 1})})
        assert stays.verdict().verdict == BROKEN
    assert replace(story, loads={DURING: None}).verdict().verdict == INCONCLUSIVE


def test_a_fault_that_needs_requests_given_up_shows_nothing_without() -> None:
    load_spec = LoadSpec(lab=LabLoad(to="prefill", abort_after="1s"))
    story = Story(load=load_spec, expect=Expect(requests="end"))
    assert story.verdict().verdict == INCONCLUSIVE
    assert "none of 8 requests was given up" in story.verdict().reason
    given_up = replace(story, loads={DURING: load(DURING, failed=8, aborted=2)})
    assert given_up.verdict().verdict == HOLDS
    assert replace(given_up, counts=()).verdict().verdict == INCONCLUSIVE


def test_tokens_that_were_not_compared_are_told() -> None:
    verdict = Story(loads={AFTER: load(AFTER, unchecked=3)}).verdict()
    assert verdict.verdict == HOLDS
    assert "8 of 8 requests completed (3 without their tokens being compared)" in verdict.evidence[-1]


def test_what_may_not_be_injected_is_what_makes_the_verdict_inconclusive() -> None:
    assert unsteady(Story(end=False).records) == ""
    assert "PD101" in unsteady(Story(looks={STEADY: (look(STEADY, findings=(DIVERGED,)),)}).records)


def test_no_manifest() -> None:
    for records in ([], [End(at=1.0)]):
        with pytest.raises(ValueError, match="begins with a manifest"):
            judge(records)


STORIES = st.builds(
    Story,
    control=st.booleans(),
    looks=st.dictionaries(
        st.sampled_from([STEADY, DURING, AFTER]),
        st.lists(
            st.builds(
                look,
                st.sampled_from([STEADY, DURING, AFTER]),
                findings=st.lists(st.sampled_from([DIVERGED, WAITING, GATE]), max_size=1).map(tuple),
                lingering=st.dictionaries(st.integers(1, 9), st.just(("a",)), max_size=1),
                dead=st.sampled_from([(), ("tp1",)]),
            ),
            max_size=2,
        ).map(tuple),
    ),
    counts=st.lists(st.builds(FaultLine, at=st.just(1.0), fired=st.integers(0, 2)), max_size=2).map(tuple),
    healed=st.lists(st.builds(Healed, at=st.just(1.0), clean=st.booleans()), max_size=1).map(tuple),
    placed=st.booleans(),
    end=st.booleans(),
)


@given(STORIES)
def test_nothing_holds_or_breaks_without_a_fault_that_fired_and_an_end(story: Story) -> None:
    verdict = story.verdict()
    shown = story.end and story.placed and any(line.fired for line in story.counts)
    assert shown or verdict.verdict == INCONCLUSIVE
    if verdict.verdict == HOLDS:
        assert not story.control
        assert story.healed
        assert story.healed[-1].clean
    assert judge(story.records) == verdict


@given(STORIES, st.data())
def test_a_journal_that_is_cut_off_is_inconclusive(story: Story, data: st.DataObject) -> None:
    records = story.records[: data.draw(st.integers(1, len(story.records) - 1))] if story.end else story.records
    assert judge(records).verdict == INCONCLUSIVE


@given(STORIES)
def test_a_journal_says_the_same_after_it_has_been_written(story: Story) -> None:
    lines = [msgspec.json.encode(record) for record in story.records]
    read = [msgspec.json.decode(line, type=Record) for line in lines]
    assert judge(read) == story.verdict()
