"""One room in the rounds of one queue: what its poll said, round by round, until the rank decided. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pdctl.probes.queues.formatting import ACTIONS, one_of, value
from pdctl.probes.story.model import Lost, Moment
from pdctl.protocol.model import POLLED_QUEUES, UNKNOWN, Action, KVPoll, Phase, poll_name
from pdctl.recording.reader import Recording
from pdctl.recording.streams import Item, Run, Stream


@dataclass(frozen=True)
class Spell:
    """Rounds of a queue with the room in them. left_ns: when it was decided on, None where it was not."""

    since_ns: int
    left_ns: int | None
    how: str = ""


@dataclass
class Polls:
    """end: where the room is in the last round, None where it has left the queue or that is not known.

    gone: a sentence where it was on the list once, is not now, and no round says what was decided; "" otherwise.
    """

    queue: str
    moments: list[Moment] = field(default_factory=list)
    spells: list[Spell] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    end: Moment | None = None
    gone: str = ""


@dataclass(frozen=True)
class _Span:
    """Rounds in which nothing changed for the room. first_ns / ordinal: of the first of them."""

    item: Item
    run: Run
    ordinal: int
    first_ns: int


def polls(stream: Stream, room: int, recording: Recording) -> Polls:
    """Return what ``stream`` says of ``room``."""
    result = Polls(stream.queue)
    teller = _Teller(stream, result, len([s for s in recording.streams if s.queue == stream.queue]) > 1)
    last_row = -1
    for row, item in stream.sightings([room]):
        if row == last_row:
            continue  # two requests with one room in one list: the first is told
        teller.see(row, item, lost=_hole(stream, last_row, row) if teller.span is not None else None)
        last_row = row
    if stream.queue not in POLLED_QUEUES:
        teller.over()
    elif teller.span is not None:
        teller.finish(last_row, room, recording)
    result.lost += _rounds_lost(stream)
    return result


def _hole(stream: Stream, before: int, after: int) -> tuple[int, int] | None:
    """Return the first and last of the rounds lost between two rows, None when there are all.

    An excerpt leaves runs out, and is not made where any is lost.
    """
    if before < 0 or after == before or stream.tail:
        return None
    starts = stream.table["ordinal"][before + 1 : after + 1].astype(np.int64)
    gaps = np.flatnonzero(starts != stream.ends[before:after] + 1)
    if not len(gaps):
        return None
    return int(stream.ends[before + gaps[0]]) + 1, int(starts[gaps[-1]]) - 1


def _rounds_lost(stream: Stream) -> list[Lost]:
    if stream.first == 0:
        return []
    return [Lost(f"rounds of {stream.queue} before round {stream.first} are overwritten", stream.run(0).t_first)]


class _Teller:
    """Goes through what changed for the room and says it; ``span`` is what it is in, None while it is in no list."""

    def __init__(self, stream: Stream, result: Polls, two_groups: bool) -> None:
        self._stream = stream
        self._result = result
        self._of = f"{stream.queue}{f' over {stream.group.kind}' if two_groups else ''}"
        self._since_ns = 0
        self._found: int | None = None
        self.span: _Span | None = None

    def see(self, row: int, item: Item, *, lost: tuple[int, int] | None) -> None:
        run = self._stream.run(row)
        if lost is not None:
            self._lose(lost)
            self.span = _Span(item, run, run.ordinal, run.t_first)
        elif self.span is None:
            self._since_ns, self._found = run.t_first, None
            self.span = _Span(item, run, run.ordinal, run.t_first)
        elif _polls(item) != _polls(self.span.item):
            self._tell(run.ordinal - 1, run.t_first)
            self.span = _Span(item, run, run.ordinal, run.t_first)
        else:
            self.span = _Span(item, run, self.span.ordinal, self.span.first_ns)
        self._look(item, run)
        if item.action not in (Action.KEPT, UNKNOWN):
            self._decide(item, run)

    def over(self) -> None:
        """Say the last span of a list that is no queue: a request is in it for as long as something is agreed on about it."""
        if self.span is not None:
            self._tell(self.span.run.last, self.span.run.t_enter)

    def finish(self, row: int, room: int, recording: Recording) -> None:
        """Say what is known of the room after the last round that says something of it."""
        stream, span = self._stream, self.span
        assert span is not None
        last, run = stream.last, stream.newest
        hole = _hole(stream, row, len(stream) - 1)
        rows = stream.rows(len(stream) - 1)
        if hole is not None:
            self._lose(hole)
        elif rows is None:
            self._result.lost.append(
                Lost(f"whether it was still in {self._of} after round {run.ordinal} can't be read")
            )
        if hole is not None or rows is None or room not in rows["room"]:
            if self.span is not None:
                self._tell(span.run.last, span.run.t_enter)
            if hole is None and rows is not None:
                self._result.gone = f"it is gone from {self._of} after round {span.run.last}; why is not recorded"
            self._result.spells.append(Spell(self._since_ns, None))
            return
        self._tell(last, run.t_enter)
        self._result.spells.append(Spell(self._since_ns, None))
        visits = recording.visits.get(stream.queue)
        if visits is not None and visits.empty and visits.count > run.visit + run.repeat - 1:
            return  # a later turn found the queue empty
        self._result.end = Moment(
            max(run.t_enter, run.t_done), "last", self._last_words(run), self._stream.queue, last, slot=span.item.slot
        )

    def _last_words(self, run: Run) -> str:
        if run.phase is Phase.ENTERED:
            others = f" of {run.n} poll{'s'[: run.n != 1]}"
            return f"last seen in round {run.last} of {self._of}, in its all_reduce{others}, not out of it when this was read"
        if run.phase is Phase.REDUCED:
            return f"last seen in round {run.last} of {self._of}: reduced, not decided"
        return f"last seen in round {run.last} of {self._of}: kept"

    def _lose(self, rounds: tuple[int, int]) -> None:
        assert self.span is not None
        self._tell(self.span.run.last, self.span.run.t_enter)
        self.span = None
        first, last = rounds
        which = f"round {first}" if first == last else f"rounds {first} to {last}"
        self._result.lost.append(Lost(f"{which} of {self._of} {'is' if first == last else 'are'} lost"))

    def _tell(self, last: int, until_ns: int) -> None:
        """Say the span that ends with round ``last``."""
        span = self.span
        assert span is not None
        item, rounds = span.item, last - span.ordinal + 1
        many = f"for {rounds:,} round{'s'[: rounds != 1]}"
        at = f"round {span.ordinal} of {self._of}"
        if item.gated != item.local and item.local == KVPoll.SUCCESS:
            took = (until_ns - span.first_ns) / 1e6
            text = f"held by the gate from {at} on, {many} ({took:,.1f} ms): slot {item.slot} not written"
            self._say(span, "held", text, rounds, until_ns, poll_name(item.gated))
            return
        queue = self._stream.queue
        one, local = one_of(queue), value(queue, item.local)
        own = f"own {one} {local}"
        if item.gated != item.local:
            own += f", sent in as {value(queue, item.gated)}"
        if item.reduced == UNKNOWN:
            text = f"{at}: {own}; no reduced {one}"
        elif item.reduced == item.gated:
            text = f"{at}: {one} {local}, {many}" if item.gated == item.local else f"{at}: {own}, {many}"
        else:
            text = f"{at}: {own}, reduced {value(queue, item.reduced)}, {many}"
        self._say(span, "poll", text, rounds, until_ns, local)

    def _say(self, span: _Span, kind: str, text: str, rounds: int, until_ns: int, value: str) -> None:
        moment = Moment(
            span.first_ns, kind, text, self._stream.queue, span.ordinal, rounds, until_ns, span.item.slot, value
        )
        self._result.moments.append(moment)

    def _look(self, item: Item, run: Run) -> None:
        """Say what was found in the slot when that changes. A prefill rank's own row is no news."""
        if item.found is None or item.found == self._found or not self._stream.queue.startswith("decode"):
            return
        self._found = item.found
        at = run.t_done or run.t_enter
        where = f"in round {run.ordinal} of {self._of}"
        if item.found == 0:
            kind, text, value = "missing", f"slot {item.slot} reads 0 {where}: metadata not written", "0"
        elif item.found == item.room:
            kind, text, value = "landed", f"slot {item.slot} holds it {where}: metadata is there", ""
        else:
            kind, text = "landed", f"slot {item.slot} holds room {item.found} {where}"
            value = "foreign"
        moment = Moment(
            at, kind, text, self._stream.queue, run.ordinal, slot=item.slot, value=value, since_ns=run.t_enter
        )
        self._result.moments.append(moment)

    def _decide(self, item: Item, run: Run) -> None:
        at = run.t_done or run.t_enter
        self._tell(run.last, at)
        did = ACTIONS.get(item.action, "left")
        text = f"{did} in round {run.last} of {self._of}"
        moment = Moment(
            at, "decision", text, self._stream.queue, run.last, slot=item.slot, value=did, since_ns=run.t_enter
        )
        self._result.moments.append(moment)
        self._result.spells.append(Spell(self._since_ns, at, did))
        self.span = None


def _polls(item: Item) -> tuple[int, int, int]:
    return item.local, item.gated, item.reduced
