"""The foreground of ``pdctl inject``: places, beats, shows and heals, whatever ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from pdctl.commands.ending import STOPPING, handled
from pdctl.faults.kinds import KINDS
from pdctl.faults.limits import LEASE_S
from pdctl.inject import healing
from pdctl.inject.parameter import format_fault
from pdctl.inject.session import BEAT_S, Counts, Session
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit
from pdctl.report.output import Document, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.inject.stop import Watch


_COUNTED = ("visits", "eligible", "fired", "passed", "released", "dropped", "failed")


class Injected(Document, frozen=True, kw_only=True, tag="pdctl.injected"):
    """How a fault went. Counts are sums over the ranks it was placed on; delay in seconds.

    visits: what its site saw. eligible: those for the ranks and room aimed at. fired: taken. passed: chosen, and let go
    by because of another room's. released: of those held, done late. dropped: never done, since nobody waited any more.
    failed: the engine could not do it. value, seed, share: as it was told.
    """

    fault: str
    kind: str
    target: str
    delay_s: float
    visits: int
    eligible: int
    fired: int
    passed: int
    released: int
    dropped: int
    failed: int
    ended: str
    healed: bool
    value: int
    seed: int
    share: float


class Stopped(BaseException):
    """A signal asked the command to end."""


class _Signals:
    def __init__(self) -> None:
        self.name = ""
        self.deaf = False

    def hear(self, number: int, _: FrameType | None) -> None:
        if not self.deaf:
            self.deaf = True
            self.name = signal.Signals(number).name
            raise Stopped

    def check(self) -> None:
        """Raise Stopped after a signal, also where C code has cleared what it raised."""
        if self.name:
            raise Stopped


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Turn the first of STOPPING into Stopped; later ones are ignored, since healing must not be cut short."""
    signals = _Signals()
    with handled(signals.hear, *STOPPING):
        yield signals


class Foreground:
    """One run of ``pdctl inject``."""

    def __init__(
        self, out: Output, session: Session, for_s: float, *, until_hit: bool, watch: Watch | None = None
    ) -> None:
        self._out = out
        self._session = session
        self._for_s = for_s
        self._until_hit = until_hit
        self._stop_when = watch
        self._live = _Live(out)

    def place_only(self) -> Exit:
        """Place a detached fault; heals what was placed when a signal comes in between."""
        with _signals() as signals:
            try:
                self._session.place(detach=True)
                signals.deaf = True
            except Stopped:
                return self._heal(f"{signals.name} while it was placed") or Exit.INTERRUPTED
        return Exit.CLEAN

    def take_back(self, why: str) -> Exit:
        """Heal a detached fault after all; returns FAULT_ACTIVE where that is not certain."""
        with _signals() as signals:
            signals.deaf = True
            return self._heal(why)

    def run(self) -> Exit:
        """Place the fault, keep it, heal it; returns the exit code."""
        why, placed = "", False
        with _signals() as signals:
            try:
                counts = self._session.place()
                placed = True
                self._say_placed()
                self._live.show(counts)
                why = self._watch(signals)
                signals.deaf = True
            except Stopped:
                why = signals.name
            finally:
                signals.deaf = True
                if placed or signals.name:  # where place() failed by itself it has healed already
                    self._live.end()
                    code = self._heal(why or "pdctl failed")
        counts = self._session.beat()
        self._session.over(counts, why)
        self._report(counts, why, code)
        if code is not Exit.CLEAN:
            return code
        if signals.name:
            return Exit.INTERRUPTED
        return Exit.CLEAN if counts.fired else Exit.PARTIAL

    def _say_placed(self) -> None:
        args = self._session.args
        names = ", ".join(rank.identity.label for rank in self._session.ranks)
        fault = format_fault(args.kind, args.delay_s, args.value)
        aimed = KINDS[args.kind].aim.value
        where = f"{aimed} {args.target}" + (f", placed on {names}" if names != args.target else "")
        self._out.note(f"{args.id}: {fault}, {where}, for {durations.show(self._for_s)}; Ctrl-C heals")

    def _watch(self, signals: _Signals) -> str:
        end = time.monotonic() + self._for_s
        while True:
            signals.check()
            began = time.monotonic()
            counts = self._session.beat()
            self._live.show(counts)
            if counts.ended and not counts.pending:
                return "; ".join(counts.ended)
            if self._session.lost:
                return f"lease lost, no answer for {durations.show(LEASE_S)}: {'; '.join(counts.silent)}"
            if self._stop_when is not None and self._stop_when.reason:
                return f"stop condition: {self._stop_when.reason}"
            if self._until_hit and counts.fired > counts.pending and not counts.silent:
                return "it has hit"
            now = time.monotonic()
            if now >= end:
                return "time is up"
            self._pause(max(0.0, min(began + BEAT_S, end) - now))

    def _pause(self, seconds: float) -> None:
        if self._stop_when is None:
            time.sleep(seconds)
        else:
            self._stop_when.wait(seconds)

    def _heal(self, why: str) -> Exit:
        healed = self._session.heal(why)
        for line in healing.lines(healed):
            self._out.error(line, "pdctl heal --all")
        clean = healing.exit_code(healed) is Exit.CLEAN
        left = self._session.aftermath() if clean else healing.Aftermath()
        for line in left.harm:
            self._out.error(line)
        for line in left.before:
            self._out.note(line)
        return healing.exit_code(healed, left.harm)

    def _report(self, counts: Counts, why: str, code: Exit) -> None:
        args, healed = self._session.args, code is Exit.CLEAN
        document = Injected(
            fault=args.id,
            kind=args.kind,
            target=args.target,
            delay_s=args.delay_s,
            **{name: getattr(counts, name) for name in _COUNTED},
            ended=why,
            healed=healed,
            value=args.value,
            seed=args.seed,
            share=args.share,
        )

        def draw(document: Injected, console: Console) -> None:
            state = "healed" if healed else "NOT HEALED for certain"
            if code is Exit.FINDING:
                state = "ended, and what is said above is not"
            console.print(
                f"{document.fault} {state} ({document.ended}): fired {counts.fired} of {counts.eligible} eligible, "
                f"{counts.visits} seen; {counts.released} done late, {counts.dropped} dropped, {counts.failed} failed"
            )

        if counts.silent:
            self._out.note(f"Counts are those of the last answer: {'; '.join(counts.silent)}")
        elif counts.fired and healed:
            self._out.note(healing.unproven(args.id))
        elif not counts.fired:
            self._out.note(f"It never fired: {_why_not(counts)}. Nothing was shown, either way.")
        self._out.document(document, draw=draw, code=code)


def _why_not(counts: Counts) -> str:
    if not counts.visits:
        return "its site was not visited while it was in place"
    if not counts.eligible:
        return f"none of the {counts.visits} visits of its site was for that rank and room"
    return (
        f"{counts.eligible} visits were eligible, and none was taken: by share, hits, one room at a time, or since the "
        "site had nothing to do it with"
    )


class _Live:
    """One line that is kept up to date on a terminal; elsewhere one line a change."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._terminal = out.err.isatty()
        self._last: object = None
        self._open = False

    def show(self, counts: Counts) -> None:
        """Show where the fault stands."""
        text = (
            f"visits {counts.visits}  eligible {counts.eligible}  fired {counts.fired}  held {counts.pending}"
            + "".join(f"  ended: {why}" for why in counts.ended)
            + "".join(f"  no answer from {who}" for who in counts.silent)
        )
        if self._terminal:
            self._out.live(text)
            self._open = True
        elif self._last != (key := (counts.fired, counts.pending, counts.ended, counts.silent)):
            self._out.note(text)
            self._last = key

    def end(self) -> None:
        """Leave the line behind."""
        if self._open:
            self._out.note("")
            self._open = False
