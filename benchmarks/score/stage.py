"""One lab in which runs are made: faults and loads are placed, seen to act, and ended again.

What a fault has done is told by the counters of the hook that does it; what ranks did, by their raw records. No judge of
pdctl is asked.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pdctl.faults.messages import FaultsBody
from pdctl.lab import state
from pdctl.lab.client import Client, Load, Outcome
from pdctl.protocol.model import Action
from pdctl.recording.reader import Item
from pdctl.targets.client import Client as AgentClient
from pdctl.targets.find import FoundRank, discover
from pdctl.targets.places import parse_places
from tests.support.labs import Lab, Labs
from tests.support.patience import factor

MOST = 4.0
"""Most by which waits are stretched on a busy machine: a run whose harm did not happen in that time is discarded."""
ACTS_S = 15.0
"""How long a fault may take to act, on a quiet machine."""


def patience(seconds: float) -> float:
    """Return seconds of a quiet machine as seconds of this one."""
    return seconds * min(MOST, factor())


@dataclass(frozen=True)
class Truth:
    """What was done. codes: findings of which one must be told. room, ranks: what it must name; 0, () for nothing.

    also: findings that are right as well, as another view of the same cause. ask: the command that tells it.
    parts: decode ranks part at the room, in a round of decode.transfer.
    silent: ranks are meant not to answer, so no look waits long for them.
    """

    codes: tuple[str, ...] = ()
    room: int = 0
    ranks: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    ask: tuple[str, ...] = ("check",)
    parts: bool = False
    silent: bool = False
    limit_s: float = 60.0


class NotFiredError(Exception):
    """What was to be done did not happen, so nothing can be expected of pdctl."""


class Sent:
    """A load on a thread of its own, until :meth:`end`. aborts: what still waits then is aborted, else it goes on."""

    def __init__(self, lab: Lab, *, aborts: bool = True, **how: Any) -> None:
        self._aborts = aborts
        self._client = Client(lab.config, Load(**{"seconds": 3600.0, **how}))
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.outcome = self._client.run()

    def end(self) -> None:
        """End the load. One that can't send any more, since its servers stand, is left to its lab's end."""
        self._client.stopping = True
        self._thread.join(patience(5))
        if self._thread.is_alive():
            return
        for request in list(self._client.waiting.values()) if self._aborts else ():
            self._client.abort(request, ("prefill", "decode"))
        self._client.close()


class Stage:
    """A lab, the run that is made in it, and everything that has to be ended after it. n: ranks of its larger side."""

    def __init__(self, labs: Labs, lab: Lab, n: int, seed: int) -> None:
        self.labs, self.lab, self.n = labs, lab, n
        self.random = random.Random(seed)
        self.room = 0
        self.loads: list[Sent] = []
        self.rids: list[str] = []
        """Of requests that are aborted on both sides at the end: one side may have ended its half."""
        self.faulty = False
        self.stopped = ""
        """Label of a rank that this run has stopped."""
        self.fired_at = 0.0

    def begin(self, seed: int) -> None:
        """Begin a run: a room and choices of its own."""
        self.lab.processes = state.processes(self.lab.folder)  # those of before a restart are gone
        self.random = random.Random(seed)
        self.room = 2 * self.random.randrange(1 << 30, 1 << 40)
        self.fired_at = time.monotonic()

    def send(self, **how: Any) -> Sent:
        """Send a load that goes on."""
        sent = Sent(self.lab, **{"seed": self.random.randrange(1 << 30), **how})
        self.loads.append(sent)
        return sent

    def one(self, **how: Any) -> Sent:
        """Send the request of this run."""
        room = how.get("room", self.room)
        self.rids.append(f"r{room:x}")
        return self.send(**{"requests": 1, "room": room, "rids": (self.rids[-1],), **how})

    def inject(self, *words: object, ranks: int = 1) -> str:
        """Place a fault as a user does. Returns its id. Raises NotFiredError where it is refused."""
        self.faulty = True
        more = ("--allow-ranks", ranks) if ranks > 1 else ()
        done = self.labs.cli("inject", *words, *more, "--for", "15m", "--detach", code=None)
        if done.returncode:
            raise NotFiredError(done.stderr)
        return done.stdout.split()[0]

    def pick(self, least: int = 0) -> int:
        """Return the number of a rank."""
        return self.random.randrange(least, self.n)

    def acts(self, what: str, look: Callable[[], Any], limit_s: float = ACTS_S) -> None:
        """Wait until it has acted, and note when. Raises NotFiredError."""
        end = time.monotonic() + patience(limit_s)
        while not look():
            if time.monotonic() > end:
                raise NotFiredError(what)
            time.sleep(0.2)
        self.fired_at = time.monotonic()

    def fired(self, fault: str, least: int = 1) -> None:
        """Wait until the hook of this fault has counted so many hits."""
        self.acts(f"{fault} has not fired", lambda: self.hits(fault) >= least)

    def hits(self, fault: str) -> int:
        """Return how many times the hook of this fault has acted, on all ranks."""
        found = [rank for rank in self._ranks() if rank.state == "live"]
        with AgentClient(timeout_s=30, rank_timeout_s=10) as client:
            bodies = [one.body for one in client.ask(found, "faults", FaultsBody)]
        return sum(one.fired for body in bodies if body for one in (*body.left, *body.past) if one.id == fault)

    def _ranks(self) -> list[FoundRank]:
        found = discover(parse_places(self.labs.env)).ranks
        return [rank for rank in found if rank.identity.cluster == self.lab.name]

    def waits(self, queue: str, rank: str = "decode dp0 pp0 tp0", room: int = 0) -> None:
        """Wait until a rank has the room of this run in a queue."""
        self.acts(f"the room in {queue} of {rank}", lambda: (room or self.room) in self.lab.queues()[rank][queue])

    def parted(self, truth: Truth) -> int:
        """Return the first round in which a decode rank let the room go, by the raw records of all its ranks; -1 unknown."""

        def let_go(item: Item) -> bool:
            return item.room == truth.room and item.action != Action.KEPT

        rounds: list[int] = []
        for process in self.lab.processes:
            if process.label.startswith("decode "):
                stream = self.lab.recording(process.label).stream("decode.transfer")
                assert stream is not None
                rounds += [run.ordinal for run in stream.runs for item in stream.items(run) or [] if let_go(item)]
        return min(rounds, default=-1)

    def ended(self) -> bool:
        """Return whether a process of the lab has ended, by /proc."""
        return not all(one.alive for one in self.lab.processes)

    def end(self) -> None:
        """End loads and faults of this run."""
        if self.stopped:
            self.labs.cli("lab", "kill", self.stopped, "--signal", "CONT", code=None)
            self.stopped = ""
        if self.faulty:
            self.labs.cli("heal", "--all", code=None)
            self.faulty = False
        for load in self.loads:
            load.end()
        self.loads.clear()
        if self.rids:
            self.labs.cli("lab", "abort", *dict.fromkeys(self.rids), code=None)
            self.rids.clear()
