"""What ``top`` shows of a state: lines of groups, ranks and findings. Pure: states in, lines out.

A cell's tone is one of TONES. Its word says the same, so that a screen without colour tells it, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from pdctl.probes.queues.model import WELL
from pdctl.protocol.durations import seconds
from pdctl.report.findings import Finding, Level
from pdctl.watch.model import GroupState, RankState, WatchState

TONES = {"well": "✓", "bad": "✗", "look": "!", "unknown": "?", "": " "}
"""Tone → the sign that stands before its word. ``""`` has none."""
RATE_S = 5.0
"""Seconds over which rates are taken."""
WIDE = 120
"""Columns from which on ranks have all of theirs."""
SEEN = ("live", "outside", "recorded")
"""States of ranks that were seen themselves."""
_GROUP_TONES = {
    **dict.fromkeys(WELL, "well"),
    "DIVERGED": "bad",
    "KEPT": "bad",
    "UNKNOWN": "unknown",
    "SKEWED": "unknown",
}
_RANK_TONES = {"live": "well", "outside": "well", "recorded": "", "silent": "bad", "dead": "bad"}
_LEVEL_TONES = {Level.ERROR: "bad", Level.WARNING: "look", Level.INFO: ""}
_MOST_STATES = 64
_LONGEST = 2_000
"""Characters of a cell that are shown."""


@dataclass(frozen=True)
class Cell:
    """A text, and its tone: one of TONES."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a table. key: what it is about, the same in the next state."""

    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Headings, and lines with as many cells. right: headings of numbers."""

    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    right: tuple[str, ...] = ()


class Rates:
    """Rounds a second of groups and ranks, over the last RATE_S seconds of the states that it was told."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, dict[str, int]]] = deque(maxlen=_MOST_STATES)

    def add(self, state: WatchState) -> None:
        """Take a state, younger than all before."""
        rounds = {rank_key(one): sum(one.rounds.values()) for one in state.ranks if one.rounds}
        rounds |= {group_key(one): sum(one.rounds.values()) for one in state.groups if one.rounds}
        self._seen.append((state.at_wall_ns, rounds))
        while len(self._seen) > 2 and state.at_wall_ns - self._seen[1][0] >= RATE_S * 1e9:
            self._seen.popleft()

    def of(self, key: str) -> float | None:
        """Return the rounds a second of a group or a rank; None where two states in a row did not tell them."""
        told = [(at, rounds[key]) for at, rounds in self._seen if key in rounds]
        if len(told) < 2 or told[-1][0] != self._seen[-1][0]:
            return None
        (first, before), (last, now) = told[0], told[-1]
        return (now - before) * 1e9 / (last - first) if last > first and now >= before else None


def rank_key(rank: RankState) -> str:
    """Return what tells this process from all others."""
    return f"rank {rank.cluster} {rank.service} {rank.instance} {rank.rank}"


def group_key(group: GroupState) -> str:
    """Return what tells this group from all others."""
    return f"group {group.cluster} {group.kind} {group.title}"


def finding_key(found: Finding) -> str:
    """Return what tells this finding from others of its state: not what grows, such as ages in its summary."""
    return f"finding {found.code} {found.group} {' '.join(found.ranks)} {' '.join(map(str, found.rooms))}"


def headline(state: WatchState) -> tuple[Cell, ...]:
    """Return what is to be read first: the first cause and its next step, else what was seen and is well.

    "Well" is said of what was seen only: it names what was not.
    """
    first = next((found for found in state.findings if found.level is not Level.INFO), None)
    if first is not None:
        more = sum(found.level is not Level.INFO and not found.follows for found in state.findings) - 1
        also = f"  (and {more} more)" if more > 0 else ""
        cause = Cell(f"{first.code} {first.summary}{also}", _LEVEL_TONES[first.level])
        return (cause, Cell(f"Next: {first.next_step}")) if first.next_step else (cause,)
    if not state.ranks:
        return (Cell("There are no ranks. It goes on looking.", "unknown"),)
    unseen = len(state.problems)
    if unseen:
        return (Cell(f"Nothing was found; {_many(unseen, 'thing')} could not be seen (below).", "unknown"),)
    if not state.checked_wall_ns:
        return (Cell("Nothing was found so far. The first whole check has not ended.", "unknown"),)
    return (Cell("Nothing was found.", "well"),)


def status(state: WatchState) -> str:
    """Return one line of what was looked at, and when."""
    checked = "no whole check yet"
    if state.checked_wall_ns:
        checked = f"whole check {seconds(max(0.0, (state.at_wall_ns - state.checked_wall_ns) / 1e9))} ago"
    there = sum(not rank.host for rank in state.ranks)
    count = f"{_many(len(state.groups), 'group')}, {_many(there, 'rank')}"
    return f"{count}, look of {seconds(state.took_s)}, {checked}"


def groups(state: WatchState, rates: Rates) -> Table:
    """Return a line a group."""
    named = len({one.cluster for one in state.groups}) > 1
    lines = []
    for one in state.groups:
        where = f"{_short(one.queue)} {one.round}" if one.round >= 0 else ""
        if where and one.age_s is not None:
            where += f", {seconds(one.age_s)} ago"
        cells = (
            Cell(one.verdict, _GROUP_TONES.get(one.verdict, "look")),
            Cell(f"{one.title} of {one.cluster}" if named and one.cluster else one.title),
            Cell(where),
            Cell(_rate(rates.of(group_key(one)))),
        )
        lines.append(Line(group_key(one), cells))
    return Table(("verdict", "group", "since round", "rounds/s"), _distinct(lines), right=("rounds/s",))


def ranks(state: WatchState, rates: Rates, *, wide: bool) -> Table:
    """Return a line a rank. wide: more than the columns that are needed most."""
    names = ["rank", "state", "requests", "oldest", "turned", "rounds/s", "slots"]
    names += ["gate held", "faults", "server", "where"] if wide else []
    lines = []
    for one in state.ranks:
        cells = [
            Cell(one.rank),
            Cell(one.state, _RANK_TONES.get(one.state, "look")),
            Cell(_requests(one.queues)),
            Cell(_age(max(one.oldest_s.values(), default=None))),
            Cell(_turned(one)),
            Cell(_rate(rates.of(rank_key(one)))),
            Cell(_used(one)),
        ]
        if wide:
            held = "" if one.gated is None else f"{one.gated}" if not one.gated else f"{one.gated}, {_age(one.gated_s)}"
            server = " ".join(filter(None, (one.cluster, one.service)))
            faults = Cell("" if one.faults is None else str(one.faults), "look" if one.faults else "")
            cells += [Cell(held), faults, Cell(server), Cell(one.reason or ("" if _moves(one) else one.where))]
        elif one.faults:
            tone = "look" if one.state in SEEN else cells[1].tone
            cells[1] = Cell(f"{one.state}, {_many(one.faults, 'fault')}", tone)
        lines.append(Line(rank_key(one), tuple(cells)))
    return Table(tuple(names), _distinct(lines), right=("oldest", "turned", "rounds/s", "slots"))


def findings(state: WatchState) -> Table:
    """Return a line a finding, what follows from one below it, then a line for all that could not be seen."""
    lines = []
    for number, found in enumerate(state.findings):
        indent = "  " if found.follows and number else ""
        tone = _LEVEL_TONES[found.level]
        lines.append(Line(finding_key(found), (Cell(f"{indent}{found.code}", tone), Cell(found.summary))))
    lines += [Line(f"problem {text}", (Cell("not seen", "unknown"), Cell(text))) for text in state.problems]
    return Table(("finding", "what"), _distinct(lines))


def laid_out(table: Table) -> tuple[str, list[list[tuple[str, str]]]]:
    """Return a table's headings as one line, and each of its lines as parts of columns that stand below each other.

    A part is a text with its sign, as wide as its column and a blank, and its tone.
    """
    words = [[_word(cell) for cell in line.cells] for line in table.lines]
    numbers = [heading in table.right for heading in table.headings]
    widths = [max(map(cell_len, column)) for column in zip(table.headings, *words, strict=True)]
    if not numbers[-1]:
        widths[-1] = 0
    heading = "".join(map(_filled, table.headings, widths, numbers))
    lines = [
        [(text, cell.tone) for text, cell in zip(map(_filled, row, widths, numbers), line.cells, strict=True)]
        for row, line in zip(words, table.lines, strict=True)
    ]
    return heading, lines


def _word(cell: Cell) -> str:
    return f"{TONES[cell.tone]} {cell.text[:_LONGEST]}" if cell.tone else cell.text[:_LONGEST]


def _filled(text: str, width: int, number: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return f"{blanks}{text} " if number else f"{text}{blanks} "


def _distinct(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines, each with a key of its own: two may say the same of themselves."""
    count: dict[str, int] = {}
    made: dict[str, Line] = {}
    for line in lines:
        count[line.key] = nth = count.get(line.key, 0) + 1
        key = line.key if nth == 1 else f"{line.key} #{nth}"
        while key in made:  # it is what another line says of itself
            key += "'"
        made[key] = Line(key, line.cells)
    return tuple(made.values())


def _requests(queues: Mapping[str, int]) -> str:
    return " ".join(f"{_short(queue)} {count}" for queue, count in queues.items() if count)


def _short(queue: str) -> str:
    return queue.partition(".")[2] or queue


def _used(rank: RankState) -> str:
    if rank.slots_used is None:
        return ""
    return f"{rank.slots_used}/{rank.slots}" if rank.slots is not None else str(rank.slots_used)


def _moves(rank: RankState) -> bool | None:
    """Return whether its scheduler loop turned within a second; None where that is unknown."""
    return None if rank.tick_age_s is None else rank.tick_age_s < 1


def _turned(rank: RankState) -> str:
    """Return when its loop turned last. One that goes on has the same words in every look: only what changes is drawn."""
    return "now" if _moves(rank) else _age(rank.tick_age_s)


def _age(age_s: float | None) -> str:
    return "" if age_s is None else seconds(age_s)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s'[: count != 1]}"


def rooms(found: Sequence[Finding], *more: int) -> tuple[int, ...]:
    """Return the rooms that findings name, and more of them, each once."""
    return tuple(dict.fromkeys((*(room for one in found for room in one.rooms), *more)))
