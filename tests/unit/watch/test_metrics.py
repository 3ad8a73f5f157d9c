"""The metrics of a look: their text, their names, their bounds, and counters that only rise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.faults.limits import DEFAULT_TTL_S, MAX_TTL_S
from pdctl.report.findings import catalogue, finding
from pdctl.watch import metrics
from pdctl.watch.metrics import FAMILIES, LOOK, MOST_LABEL, Totals
from pdctl.watch.model import GroupState, RankState, WatchState

NAME = "decode dp0 pp0 · attention-TP group of 2"
SECOND = 1_000_000_000
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+)')


def rank(name: str = "decode dp0 pp0 tp0", **more: object) -> RankState:
    given_ = {"rank": name, "role": name.partition(" ")[0], "state": "live", "service": "decode@a:1", "instance": "i1"}
    return RankState(**{**given_, **more})  # type: ignore[arg-type]


def group(verdict: str = "AGREE", **more: object) -> GroupState:
    given_ = {"title": f"{NAME} · decode@a:1", "kind": "polls", "role": "decode", "service": "decode@a:1"}
    return GroupState(**{**given_, "verdict": verdict, **more})  # type: ignore[arg-type]


def state(*ranks: RankState, at: int = 1, **more: object) -> WatchState:
    return WatchState(at_wall_ns=at * SECOND, took_s=0.01, ranks=ranks, **more)  # type: ignore[arg-type]


def samples(text: str) -> dict[str, float]:
    """Return the samples of a text, each as it is written; every line must be one, or a HELP or TYPE before its samples."""
    found: dict[str, float] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == family
            key = line.rpartition(" ")[0]
            assert key not in found, "a scrape with two samples of the same labels is refused"
            found[key] = float(match[3])
    return found


def look(*states: WatchState) -> dict[str, float]:
    totals = Totals()
    for one in states:
        totals.take(one)
    return samples(metrics.look(states[-1], totals)[0])


def test_what_tp_ranks_have_together_counts_once_and_what_dp_ranks_have_adds_up() -> None:
    def one(dp: int, tp: int, waiting: int) -> RankState:
        entries = {"decode.transfer": {"Transferring": waiting - 1}}
        return rank(
            f"decode dp{dp} pp0 tp{tp}", queues={"decode.transfer": waiting}, states=entries, slots_used=waiting
        )

    found = look(state(one(0, 0, 3), one(0, 1, 2), one(1, 0, 5)))
    labels = 'cluster="",service="decode@a:1",role="decode",dp="{}",pp="0",queue="decode.transfer",state="{}"'
    requests = {key: value for key, value in found.items() if key.startswith("pdctl_requests{")}
    assert requests == {
        f"pdctl_requests{{{labels.format(0, 'Transferring')}}}": 2,
        f"pdctl_requests{{{labels.format(0, '')}}}": 1,
        f"pdctl_requests{{{labels.format(1, 'Transferring')}}}": 4,
        f"pdctl_requests{{{labels.format(1, '')}}}": 1,
    }
    assert found['pdctl_metadata_slots_used{cluster="",service="decode@a:1",role="decode",dp="0",pp="0"}'] == 3


def test_a_group_that_nobody_knows_is_neither_diverged_nor_not() -> None:
    labels = f'{{cluster="",service="decode@a:1",role="decode",group="{NAME}",kind="polls"}}'
    assert look(state(groups=(group("DIVERGED", age_s=2.5),)))[f"pdctl_group_diverged{labels}"] == 1
    assert look(state(groups=(group("DIVERGED", age_s=2.5),)))[f"pdctl_group_diverged_seconds{labels}"] == 2.5
    assert look(state(groups=(group("HELD"),)))[f"pdctl_group_diverged{labels}"] == 0
    unknown = look(state(groups=(group("UNKNOWN"),)))
    assert f"pdctl_group_diverged{labels}" not in unknown
    assert unknown['pdctl_groups{role="decode",verdict="UNKNOWN"}'] == 1
    assert unknown['pdctl_groups{role="decode",verdict="DIVERGED"}'] == 0


def test_of_ranks_that_ended_only_their_state_is_told() -> None:
    dead = rank(state="dead", queues={"decode.transfer": 3}, tick_age_s=1e6, faults=1, slots_used=2)
    found = look(state(dead))
    assert found['pdctl_ranks{cluster="",service="decode@a:1",role="decode",state="dead"}'] == 1
    assert found['pdctl_ranks{cluster="",service="decode@a:1",role="decode",state="live"}'] == 0
    assert not [
        key for key in found if key.startswith(("pdctl_requests", "pdctl_turn_age", "pdctl_faults", "pdctl_metadata"))
    ]


def test_a_host_that_is_not_reached_is_no_rank_of_a_look() -> None:
    seen = state(rank(), rank("gpu2", role="unknown", state="silent", host=True))
    assert samples(metrics.own(up=True, state=seen, looks=1, left_out={}))["pdctl_look_ranks"] == 1


def test_every_code_has_a_series_and_a_consequence_is_not_counted_as_a_cause() -> None:
    import msgspec

    cause = finding("PD101", "one", rooms=(7_203_441,))
    found = look(state(findings=(cause, msgspec.structs.replace(finding("PD114", "two"), follows="PD101"))))
    assert found['pdctl_findings{code="PD101",level="error",kind="cause"}'] == 1
    assert found['pdctl_findings{code="PD114",level="error",kind="cause"}'] == 0
    assert found['pdctl_findings{code="PD114",level="error",kind="consequence"}'] == 1
    assert sum(key.startswith("pdctl_findings{") for key in found) == len(catalogue()) + 1


def test_counters_rise_over_restarts() -> None:
    def at(second: int, ticks: int, instance: str, rounds: int) -> WatchState:
        groups = (group(rounds={"decode.transfer": rounds}),)
        return state(rank(ticks=ticks, instance=instance, agent_cpu_s=ticks / 10), at=second, groups=groups)

    totals = Totals()
    told = []
    for one in (at(1, 100, "a", 9), at(2, 150, "a", 19), at(3, 180, "b", 4), at(4, 200, "b", 5), at(5, 10, "b", 5)):
        totals.take(one)
        text = samples(metrics.look(one, totals)[0])
        turns = text['pdctl_turns_total{cluster="",service="decode@a:1",role="decode"}']
        labels = f'cluster="",service="decode@a:1",role="decode",group="{NAME}"'
        rounds = text[f'pdctl_group_rounds_total{{{labels},queue="decode.transfer"}}']
        told.append((turns, rounds, text[f"pdctl_group_round_age_seconds{{{labels}}}"]))
    assert told == [(100, 10, 0), (150, 20, 0), (330, 25, 0), (350, 26, 0), (360, 26, 1)]


def test_a_rank_that_was_silent_for_a_while_loses_no_turn() -> None:
    found = look(state(rank(ticks=100)), state(rank(ticks=None)), state(), state(rank(ticks=130)))
    assert found['pdctl_turns_total{cluster="",service="decode@a:1",role="decode"}'] == 130


def test_names_are_escaped_cut_and_never_the_same_twice() -> None:
    nasty = 'a"b\\c\nd\x1b[31m\u202e\udc80'
    long = "x" * 500
    found = look(
        state(
            rank(service=nasty),
            rank(service=f"{long}1"),
            rank(service=f"{long}2"),
            rank(state="no agent", cluster=nasty),
        )
    )
    shown = r"a\"b\\c\\nd\\x1b[31m\\u202e\\udc80"
    assert found[f'pdctl_ranks{{cluster="",service="{shown}",role="decode",state="live"}}'] == 1
    cut = f'pdctl_ranks{{cluster="",service="{long[: MOST_LABEL - 1]}…",role="decode",state="live"}}'
    assert found[cut] == 1
    assert "\x1b" not in "".join(found)


def test_series_are_bounded_and_what_is_not_zero_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SERIES", most := 100)
    groups = [group(title=f"group {n:05}") for n in range(most * 3)]
    groups[-1] = group("DIVERGED", title="zzz")
    totals = Totals()
    one = state(groups=tuple(groups))
    totals.take(one)
    text, left_out = metrics.look(one, totals)
    found = samples(text)
    assert sum(key.startswith("pdctl_group_diverged{") for key in found) == most
    assert found['pdctl_group_diverged{cluster="",service="decode@a:1",role="decode",group="zzz",kind="polls"}'] == 1
    assert left_out["pdctl_group_diverged"] == 2 * most
    assert left_out["pdctl_ranks"] == 0
    own = samples(metrics.own(up=True, state=one, looks=1, left_out=left_out))
    assert own['pdctl_series_left_out{metric="pdctl_group_diverged"}'] == 2 * most


def test_what_is_kept_of_ranks_that_are_gone_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_KEPT", 50)
    totals = Totals()
    for start in range(500):
        groups = (group(title=f"group {start}", rounds={"decode.transfer": 3}),)
        totals.take(state(rank(ticks=5, instance=f"i{start}", service=f"s{start}"), rank(ticks=start), groups=groups))
    kept = [value for value in vars(totals).values() if isinstance(value, dict)]
    assert len(kept) == 3
    assert all(len(one) <= 50 for one in kept)
    assert totals.total(metrics.TURNS, ("", "decode@a:1", "decode")) == 499


def test_a_rank_that_lies_about_numbers_spoils_no_scrape() -> None:
    nan = float("nan")
    found = look(state(rank(tick_age_s=nan, agent_cpu_s=float("inf"), ticks=-5, oldest_s={"decode.transfer": nan})))
    assert not [key for key in found if key.startswith(("pdctl_turn", "pdctl_agent", "pdctl_oldest"))]


NAMES = st.text(max_size=8)
NUMBERS = st.none() | st.floats()


@given(NAMES, NAMES, NAMES, st.dictionaries(NAMES, st.integers(0, 1 << 64), max_size=3), NUMBERS, NAMES)
def test_whatever_ranks_say_the_text_is_well_formed(
    label: str, service: str, role: str, queues: dict[str, int], number: float | None, title: str
) -> None:
    one = rank(
        label, service=service, role=role, queues=queues, tick_age_s=number, oldest_s=dict.fromkeys(queues, number)
    )
    found = look(state(one, groups=(group(title, title=title, rounds=queues, age_s=number),)))
    assert found


def test_names_follow_the_conventions() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"pdctl_[a-z_]+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert "room" not in family.labels
        assert "rid" not in family.labels
        assert family.about.endswith(".")
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert {family.name for family in LOOK} <= set(metrics.look(state(), Totals())[1])


def test_the_page_and_what_is_in_deploy_name_the_metrics_that_there_are() -> None:
    root = Path(metrics.__file__).resolve().parents[2]
    names = {family.name for family in FAMILIES}
    page = (root / "docs" / "export.md").read_text()
    rows = {
        name: labels
        for said, labels in re.findall(r"^\| ((?:`pdctl_\w+`(?:, )?)+) \| ([a-z, ]*) ?\|", page, re.MULTILINE)
        for name in re.findall(r"\w+", said)
    }
    assert {name: labels.strip() for name, labels in rows.items()} == {
        family.name: ", ".join(family.labels) for family in FAMILIES
    }
    [minutes] = re.findall(r"PdctlFaultInPlace\n.*\n +for: (\d+)m", (root / "deploy" / "export-rules.yml").read_text())
    assert DEFAULT_TTL_S < int(minutes) * 60 < MAX_TTL_S, "one fault fires its alert"
    assert f"faults are in place for {minutes} minutes" in page
    for file in (root / "deploy").glob("export-*"):
        used = set(re.findall(r"\bpdctl_[a-z_]+", file.read_text()))
        assert used <= names, file.name
