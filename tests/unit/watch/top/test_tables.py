"""What top shows of a state, from built states."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from pdctl.report.output import Format, Output
from pdctl.watch.model import WatchState
from pdctl.watch.top import tables
from pdctl.watch.top.plain import render
from pdctl.watch.top.tables import Cell, Line, Rates, Table, group_key, rank_key
from tests.unit.watch.top.worlds import AT, CAUSE, ROOM, S, diverged, healthy, rank


def cells(table: Table) -> list[list[str]]:
    return [[cell.text for cell in line.cells] for line in table.lines]


def test_a_healthy_state_says_what_was_looked_at() -> None:
    state = healthy()
    assert tables.headline(state) == (Cell("Nothing was found.", "well"),)
    assert tables.status(state) == "1 group, 2 ranks, look of 12 ms, whole check 3.0 s ago"
    host = replace(state.ranks[0], rank="gpu2", state="silent", host=True)
    assert tables.status(replace(state, ranks=(*state.ranks, host))) == tables.status(state)
    assert cells(tables.groups(state, Rates())) == [["AGREE", "decode dp0 pp0 · attention-TP group of 2", "", ""]]
    assert cells(tables.ranks(state, Rates(), wide=False))[1] == [
        "decode dp0 pp0 tp1", "live", "transfer 2", "0.3 s", "now", "", "2/64"
    ]  # fmt: skip
    assert tables.findings(state).lines == ()


def test_well_is_said_of_what_was_seen_only() -> None:
    assert tables.headline(healthy(checked_wall_ns=0))[0].tone == "unknown"
    assert "1 thing could not be seen" in tables.headline(healthy(problems=("tp1 is silent",)))[0].text
    assert "no ranks" in tables.headline(healthy(ranks=(), groups=()))[0].text


def test_a_divergence_comes_first_with_its_next_step() -> None:
    state = diverged()
    cause, then = tables.headline(state)
    assert cause == Cell(f"PD101 {CAUSE.summary}", "bad")
    assert then.text == f"Next: {CAUSE.next_step}"
    [group] = tables.groups(state, Rates()).lines
    assert group.cells[0] == Cell("DIVERGED", "bad")
    assert group.cells[2].text == "transfer 881, 14.2 s ago"
    shown = tables.findings(state)
    assert [line.cells[0].text for line in shown.lines] == ["PD101", "  PD114", "not seen"]
    assert tables.rooms(state.findings, ROOM, 5) == (ROOM, 5)
    assert "(and 1 more)" in tables.headline(replace(state, findings=(CAUSE, CAUSE)))[0].text


def test_each_tone_has_a_sign_and_each_state_a_word() -> None:
    state = diverged()
    every = (tables.groups(state, Rates()), tables.ranks(state, Rates(), wide=True), tables.findings(state))
    toned = [cell for table in every for line in table.lines for cell in line.cells if cell.tone]
    assert toned
    assert all(cell.text and tables.TONES[cell.tone].strip() for cell in toned)


def test_rates_are_of_the_last_seconds() -> None:
    rates = Rates()
    first = healthy()
    group, one = group_key(first.groups[0]), rank_key(first.ranks[0])
    rates.add(first)
    assert rates.of(group) is None
    rates.add(healthy(1))
    assert rates.of(group) == rates.of(one) == 100.0
    stopped = healthy(1)
    for second in range(2, 9):
        rates.add(replace(stopped, at_wall_ns=AT + second * S))
    assert rates.of(group) == 0.0, "what was long ago does not count"


def test_a_rank_that_went_or_began_anew_has_no_rate() -> None:
    rates = Rates()
    rates.add(healthy(5))
    rates.add(replace(healthy(0), at_wall_ns=AT + 6 * S))
    assert rates.of(rank_key(healthy().ranks[0])) is None
    rates.add(healthy(7, ranks=(), groups=()))
    assert rates.of(rank_key(healthy().ranks[0])) is None


def test_ranks_that_say_the_same_of_themselves_are_all_shown() -> None:
    state = healthy(ranks=(rank(), rank(), rank(1)))
    lines = tables.ranks(state, Rates(), wide=True).lines
    assert len({line.key for line in lines}) == 3


def test_columns_stand_below_each_other() -> None:
    first = Line("a", (Cell("x", "well"), Cell("7"), Cell("漢")))
    second = Line("b", (Cell("漢"), Cell("1234", "bad"), Cell("z")))
    heading, laid_out = tables.laid_out(Table(("name", "n", "c"), (first, second), ("n",)))
    assert heading == "name      n c "
    assert laid_out == [
        [("✓ x  ", "well"), ("     7 ", ""), ("漢 ", "")],
        [("漢   ", ""), ("✗ 1234 ", "bad"), ("z ", "")],
    ]


def test_faults_and_the_gate_are_shown() -> None:
    held = rank(gated=2, gated_s=3.0, faults=1)
    narrow = tables.ranks(healthy(ranks=(held,)), Rates(), wide=False)
    wide = tables.ranks(healthy(ranks=(held,)), Rates(), wide=True)
    assert cells(narrow)[0][1] == "live, 1 fault"
    assert cells(wide)[0][7:9] == ["2, 3.0 s", "1"]


def test_a_rank_whose_loop_stands_says_where() -> None:
    where = "model forward: all_reduce"
    stands, moves = rank(0, tick_age_s=12.0, where=where), rank(1, where=where)
    lines = cells(tables.ranks(healthy(ranks=(stands, moves)), Rates(), wide=True))
    assert [(line[4], line[-1]) for line in lines] == [("12.0 s", where), ("now", "")]


def test_without_screens_the_same_tables_are_drawn() -> None:
    state = diverged()
    hostile = replace(state.findings[0], summary="a rid \x1b[2J [red]x[/red]")
    state = replace(state, findings=(hostile, *state.findings[1:]))

    def draw(shown: WatchState, console: Console) -> None:
        for part in render(shown, Rates(), wide=False):
            console.print(part)

    text = Output(Format.TABLE, env={"COLUMNS": "80"}).drawn(state, draw)
    assert "a rid \\x1b[2J [red]x[/red]" in text
    assert "\x1b" not in text
    assert "DIVERGED" in text
    assert "silent" in text


def test_lines_that_say_the_same_and_their_number_are_all_there() -> None:
    shown = tables.findings(healthy(problems=("a", "a", "a #2")))
    assert len({line.key for line in shown.lines}) == 3
