"""Runs a drill: steady state, fault, looks, heal, looks again; every step goes into the journal before the next."""

from __future__ import annotations

import itertools
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pdctl
from pdctl.faults.kinds import STATES
from pdctl.faults.limits import MAX_TTL_S
from pdctl.inject import healing
from pdctl.inject.audit import Audit, owner
from pdctl.inject.drill.journal import Journal
from pdctl.inject.drill.judge import judge, means_broken, unsteady
from pdctl.inject.drill.load import Patience, Running, Sender
from pdctl.inject.drill.records import (
    AFTER,
    DURING,
    FAULT,
    HEAL,
    STEADY,
    End,
    FaultLine,
    Healed,
    Look,
    Manifest,
    Placed,
    Problem,
    RankLine,
    Step,
    Stopped,
    Verdict,
)
from pdctl.inject.drill.samples import Sampler
from pdctl.inject.drill.schema import Drill
from pdctl.inject.plan import Plan, plan
from pdctl.inject.session import BEAT_S, Counts, Session, load_known
from pdctl.inject.wish import Wish
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.findings import Level
from pdctl.targets import selectors
from pdctl.targets.client import Client
from pdctl.targets.find import Found

LOOK_S = 0.5
STEADY_LOOKS = 3
BROKEN_PATIENCE_S = 1.0
"""How long a load may go on after healing when it is broken already: no verdict depends on it any more."""


def wish(drill: Drill, fault_id: str) -> Wish:
    """Return what the drill's fault asks for, as ``pdctl inject`` would ask it. The drill must have one."""
    fault = drill.fault
    assert fault is not None
    value = STATES[fault.state] if fault.state else max(fault.dp, 0) or fault.other_room
    return Wish(
        patterns=tuple(selectors.parse(pattern) for pattern in fault.rank),
        ttl_s=durations.parse(drill.for_, most_s=MAX_TTL_S),
        fault_id=fault_id,
        owner=owner(),
        delay_s=durations.parse(fault.delay, most_s=MAX_TTL_S) if fault.delay else 0.0,
        kind=fault.kind,
        value=value,
        room=fault.room,
        hits=fault.hits,
        seed=drill.seed,
        share=fault.share,
        allow_ranks=fault.allow_ranks,
        allow_rooms=fault.allow_rooms,
    )


class _Keeper(threading.Thread):
    """Renews a fault's lease on its own thread, since a sample of hanging ranks may take longer than the lease."""

    def __init__(self, session: Session) -> None:
        super().__init__(name="pdctl-beats", daemon=True)
        self._session = session
        self._enough = threading.Event()
        self.counts = Counts()

    def run(self) -> None:
        while not self._enough.is_set():
            began = time.monotonic()
            self.counts = self._session.beat()
            self._enough.wait(max(0.0, began + BEAT_S - time.monotonic()))

    def stop(self) -> None:
        """Return when no beat is under way."""
        self._enough.set()
        if self.ident is not None:
            self.join()


@dataclass
class Run:
    """One run of a drill on the ranks found. say: told what happens, for people."""

    drill: Drill
    found: Found
    client: Client
    sender: Sender
    journal: Journal
    audit: Audit
    say: Callable[[str], None]
    control: bool = False
    lab: str = ""
    servers: str = ""

    def run(self) -> Verdict:
        """Run the drill and return the verdict. Failures go into the journal and are not raised.

        Only KeyboardInterrupt is raised again, after healing.
        """
        self._sampler = Sampler(self.client, self.found)
        self._for_s = durations.parse(self.drill.for_, most_s=MAX_TTL_S)
        self._settle_s = durations.parse(self.drill.settle, most_s=MAX_TTL_S)
        self._keep_s = durations.parse(self.drill.keep, most_s=MAX_TTL_S) if self.drill.keep else 0.0
        self._stalled_s = durations.parse(self.drill.stop.stalled, most_s=MAX_TTL_S)
        self._step_name, self._broken = STEADY, False
        self._loads: list[Running] = []
        self._main: Running | None = None
        self._rooms: dict[int, None] = {}
        self.journal.write(self._manifest())
        try:
            self._steps()
        except PdctlError as error:
            self._problem(error.message, error.next_step, error.code)
        except KeyboardInterrupt:
            self._problem("interrupted", "", Exit.INTERRUPTED)
            raise
        finally:
            for load in self._loads:
                if not load.over:
                    load.finish(0.0, "", "")
            self.journal.write(End(at=self.journal.at))
            verdict = judge(self.journal.records)
            self.journal.write(verdict)
        return verdict

    def _manifest(self) -> Manifest:
        ranks = [
            RankLine(
                rank=rank.identity.label, state=rank.state, engine=rank.identity.engine,
                engine_version=rank.identity.engine_version, pdctl_version=rank.identity.pdctl_version,
                host=rank.identity.host, pid=rank.identity.pid, armed=rank.identity.armed, lacks=rank.identity.lacks,
            )
            for rank in self.found.ranks
        ]  # fmt: skip
        clusters = sorted({rank.identity.cluster for rank in self.found.ranks})
        return Manifest(
            pdctl=pdctl.__version__, python=platform.python_version(), started=time.time(), seed=self.drill.seed,
            control=self.control, drill=self.drill, owner=owner(), cluster=", ".join(clusters), lab=self.lab,
            servers=self.servers, ranks=tuple(ranks),
        )  # fmt: skip

    def _problem(self, message: str, next_step: str, code: int) -> None:
        at, step = self.journal.at, self._step_name
        self.journal.write(Problem(at=at, step=step, message=message, next_step=next_step, code=int(code)))

    def _step(self, name: str, text: str) -> None:
        self._step_name = name
        self.journal.write(Step(at=self.journal.at, step=name, text=text))
        self.say(f"{self.journal.at:6.1f} s  {name:<7} {text}")

    def _steps(self) -> None:
        if not self._steady():
            return
        if self.drill.fault is None:
            self._during(None, None)
            self._step(HEAL, "nothing to heal: the load was the cause")
        else:
            self._with_fault()
        self._after()

    # ---- steady state ------------------------------------------------------------------------------------------------

    def _steady(self) -> bool:
        """Return whether the state is steady, so the drill may go on. The verdict uses the same rule."""
        self._step(STEADY, "every rank answers, no finding, requests complete")
        load = self._send(0, plain=True)
        patience = Patience(load, self._settle_s, time.monotonic())
        for number in itertools.count(1):
            over = load is None or load.over
            look = self._look()
            late = patience.over(time.monotonic())
            if look.silent or _findings(look) or late or (over and number >= STEADY_LOOKS):
                break
            time.sleep(LOOK_S)
        if load is not None:
            self._finish(load, STEADY, STEADY if load.over else "")
            self._look()
        return not unsteady(self.journal.records)

    # ---- the fault ---------------------------------------------------------------------------------------------------

    def _with_fault(self) -> None:
        assert self.drill.fault is not None
        self._step(FAULT, f"{self.drill.fault.kind} on {', '.join(self.drill.fault.rank)}")
        self.client.restart()
        planned = plan(load_known(self.client, self.found.ranks), wish(self.drill, f"d-{os.urandom(3).hex()}"))
        ranks = [next(rank for rank in self.found.ranks if rank.identity == identity) for identity in planned.on]
        with Client(timeout_s=BEAT_S, rank_timeout_s=0.8 * BEAT_S, acts=True) as beats:
            session = Session(self.client, beats, self.audit, ranks, planned.args)
            keeper = _Keeper(session)
            try:
                session.place()
                keeper.start()
                self._placed(planned)
                self._during(session, keeper)
            except PdctlError:
                if keeper.ident is not None:  # where place() failed by itself it has healed already
                    self._heal(session, keeper)
                raise
            except BaseException:
                self._heal(session, keeper)
                raise
            try:
                self._heal(session, keeper)
            except KeyboardInterrupt:  # the first one; later ones are not heard
                self._heal(session, keeper)
                raise

    def _placed(self, planned: Plan) -> None:
        args = planned.args
        targets, on = (tuple(identity.selector for identity in who) for who in (planned.targets, planned.on))
        self.journal.write(
            Placed(at=self.journal.at, fault=args.id, kind=args.kind, targets=targets, on=on, notes=planned.notes)
        )

    def _heal(self, session: Session, keeper: _Keeper) -> None:
        self._step(HEAL, "the fault is ended on every rank, and each is asked again")
        keeper.stop()
        healed = session.heal(f"drill {self.drill.name} is over")
        clean = healing.exit_code(healed) is Exit.CLEAN
        counts = session.beat()
        self._count(counts, session.last_rooms, final=True)
        session.over(counts, f"drill {self.drill.name}")
        self.journal.write(Healed(at=self.journal.at, clean=clean, left=tuple(healing.lines(healed))))
        if not clean:
            raise PdctlError("; ".join(healing.lines(healed)), "pdctl heal --all", Exit.FAULT_ACTIVE)

    def _during(self, session: Session | None, keeper: _Keeper | None) -> None:
        self._step(DURING, "requests, and a look every half second")
        load = self._main = self._send(1, plain=False)
        end = time.monotonic() + self._for_s
        over_since = 0.0
        while True:
            began = time.monotonic()
            if load is not None and load.over:
                over_since = over_since or began
            over = bool(over_since) and began - over_since >= self._keep_s  # before the look: one follows the end
            look = self._look(shown=True)
            if keeper is not None and session is not None:
                self._count(keeper.counts, session.last_rooms)
            self._broken = any(means_broken(finding, self.drill.expect.broken) for finding in look.findings)
            why = self._stop(look, load)
            if why:
                self.journal.write(Stopped(at=self.journal.at, why=why))
                self.say(f"{self.journal.at:6.1f} s  stopped {why}")
            ended = keeper is not None and (keeper.counts.over or bool(session and session.lost))
            if self._broken or why or over or ended or time.monotonic() >= end:
                break
            time.sleep(max(0.0, min(began + LOOK_S, end) - time.monotonic()))
        if load is not None and load.over:
            self._finish(load, DURING, DURING)
            self._main = None

    def _stop(self, look: Look, load: Running | None) -> str:
        """Return the stop condition that is met, "" for none."""
        if load is not None and load.failed > self.drill.stop.failed:
            return f"{load.failed} requests failed, {self.drill.stop.failed} allowed"
        for rank, since in look.stalled.items():
            if since >= self._stalled_s:
                return f"{rank} has taken no turn for {since:.0f} s"
        return ""

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def _after(self) -> None:
        self._step(AFTER, "everything finishes, no finding, nothing stays in a queue")
        load, settle_s = self._main, BROKEN_PATIENCE_S if self._broken else self._settle_s
        look = self._settle(load, settle_s)
        over = load is None or load.over
        if load is not None:
            self._finish(load, DURING, AFTER if over else "")
        if self._broken or not over or not _clean(look):
            return  # the verdict is known, and a group that hangs takes no request
        load = self._send(2, plain=True)
        if load is not None:
            self._settle(load, self._settle_s)
            self._finish(load, AFTER, AFTER if load.over else "")

    def _settle(self, load: Running | None, patience_s: float) -> Look:
        """Look until ``load`` is over and all is clean, or nothing was answered for ``patience_s``; returns the last look."""
        patience = Patience(load, patience_s, time.monotonic())
        while True:
            over = load is None or load.over
            look = self._look()
            if (over and _clean(look)) or patience.over(time.monotonic()):
                return look
            time.sleep(LOOK_S)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _look(self, *, shown: bool = False) -> Look:
        for load in self._loads:
            self._rooms.update(dict.fromkeys(load.rooms))
        rooms: Sequence[int] = tuple(self._rooms) if self._step_name == AFTER else ()
        look = self._sampler.look(self.journal.at, self._step_name, rooms)
        self.journal.write(look)
        if shown or _findings(look):
            said = [f"{finding.code} {finding.summary}" for finding in look.findings]
            self.say(f"{self.journal.at:6.1f} s  look    {'; '.join(said) or 'no finding'}")
        return look

    def _send(self, number: int, *, plain: bool) -> Running | None:
        load = self.sender.start(number, plain=plain)
        if load is not None:
            self._loads.append(load)
        return load

    def _finish(self, load: Running, step: str, ended: str) -> None:
        line = load.finish(self.journal.at, step, ended)
        self.journal.write(line)
        self.say(
            f"{self.journal.at:6.1f} s  load    {line.completed} of {line.sent} completed, {line.failed} failed, "
            f"{line.wrong} wrong, {line.unfinished} unfinished"
        )

    def _count(self, counts: Counts, rooms: tuple[int, ...], *, final: bool = False) -> None:
        self._rooms.update(dict.fromkeys(rooms))
        line = FaultLine(
            at=self.journal.at, final=final, visits=counts.visits, eligible=counts.eligible, fired=counts.fired,
            pending=counts.pending, ended=counts.ended, silent=counts.silent, rooms=rooms,
        )  # fmt: skip
        self.journal.write(line)


def _findings(look: Look) -> bool:
    return any(finding.level is not Level.INFO for finding in look.findings)


def _clean(look: Look) -> bool:
    return not (_findings(look) or look.silent or look.lingering)
