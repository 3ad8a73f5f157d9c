"""One rank of a replay: execute its plan on a real process group, and log which request left its queue in which round.

Polls, gate, reduction and commit are done as the engine's ``DecodeTransferQueue.pop_transferred`` does them; an empty queue
skips the collective, as there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pdctl.protocol import structs
from pdctl.protocol.model import Action, KVPoll
from pdctl.replay.plan import HAS_ROWS, Plan, Step, forced
from pdctl.replay.position import PositionFile, Where
from pdctl.replay.rows import Rows, rows_on
from pdctl.replay.worker_log import Line, Log, Options

EXIT_HUNG, EXIT_FAILED = 70, 71
_SUCCESS, _FAILED, _TRANSFERRING = int(KVPoll.SUCCESS), int(KVPoll.FAILED), int(KVPoll.TRANSFERRING)

Polls = NDArray[np.uint8]
Reduce = Callable[[Polls, NDArray[np.int64]], Polls]
"""Takes a rank's polls (before the gate) and the requests they are of, returns the reduced polls."""


class Worker:
    """One rank at its rounds. ended: ends the process with an exit status, also from another thread than the main one."""

    def __init__(
        self, plan: Plan, rank: int, options: Options, folder: Path, *, ended: Callable[[int], NoReturn] = os._exit
    ) -> None:
        self._ended = ended
        self._plan, self._rank, self._options = plan, rank, options
        self._log = Log(folder / f"{rank}.log")
        self._position = PositionFile(folder / f"{rank}.position")
        self._rows: Rows = rows_on(options.device, plan.slots)
        count = len(plan.requests)
        self._slots: NDArray[np.int64] = np.array([r.slots[rank] for r in plan.requests] or [0], np.int64)
        self._rooms: NDArray[np.uint64] = np.array([r.room for r in plan.requests] or [0], np.uint64)
        self._polls: Polls = np.zeros(max(1, count), np.uint8)
        self._list: NDArray[np.int64] = np.zeros(0, np.int64)
        self._held: set[int] = set()
        self._buffers: dict[int, tuple[torch.Tensor, NDArray[Any]]] = {}
        self._decides = plan.decides
        self._has_rows = plan.queue == HAS_ROWS

    def run(self, group: dist.ProcessGroup | None = None) -> None:
        """Execute every round. A round that takes too long ends the process with EXIT_HUNG."""
        reduce: Reduce = self._ours(group)
        if self._options.engine:
            from pdctl.engines.sglang.replayed import EnginePoll

            reduce = self._theirs(reduce, EnginePoll(self._rows.tensor, group, gate=self._options.gate))
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        started = time.perf_counter()
        number = -1
        try:
            for number in range(self._plan.rounds + self._plan.tail):
                self._round(number, reduce)
        except Exception as error:  # noqa: BLE001  # the collective's: what it was is the finding
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self._log.write(Line("failed", number, list=tuple(self._list.tolist()), text=text[:300]))
            self._ended(EXIT_FAILED)
        self._position.done(number + 1)
        took = time.perf_counter() - started
        self._log.write(Line("end", number + 1, list=tuple(self._list.tolist()), held=self._take_held(), seconds=took))

    def _round(self, number: int, reduce: Reduce) -> None:
        step = self._plan.ranks[self._rank].steps.get(number)
        came = step is not None and self._apply(step)
        queue = self._list
        if came:
            self._log.write(Line("came", number, list=tuple(queue.tolist())))
        if not len(queue):
            return
        self._position.enter(number, len(queue))
        reduced = reduce(self._polls[queue], queue)
        self._position.leave(number, len(queue))
        left: tuple[tuple[int, int], ...] = ()
        if self._decides:
            decided = (reduced == _SUCCESS) | (reduced == _FAILED)
            if decided.any():
                left = self._decide(reduced, decided)
        if step is not None and step.acts:
            left += self._as_recorded(step, left)
        if left:
            gone = [request for request, _ in left]
            self._list = queue[~np.isin(queue, gone)]
            slots = self._slots[gone]
            if self._options.gate and self._has_rows:  # the versions with a gate zero freed slots
                self._rows.clear(slots[slots >= 0])
        if left:
            self._log.write(Line("changed", number, left, tuple(self._list.tolist()), self._take_held()))

    def _apply(self, step: Step) -> bool:
        """Apply what happens before a round; returns whether the queue is another."""
        for request, value in step.polls:
            self._polls[request] = value
        if step.rows:
            self._rows.write([(int(self._slots[request]), room) for request, room in step.rows])
        if step.lost:
            self._list = self._list[~np.isin(self._list, step.lost)]
        if step.arrive:
            self._list = np.concatenate([self._list, np.array(step.arrive, np.int64)])
        return bool(step.arrive or step.lost)

    def _decide(self, reduced: Polls, decided: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
        left: list[tuple[int, int]] = []
        for request, poll in zip(self._list[decided].tolist(), reduced[decided].tolist(), strict=True):
            if poll == _FAILED:
                left.append((request, int(Action.FAILED)))
            elif not self._has_rows:
                left.append((request, int(Action.COMMITTED)))
            else:
                found = int(self._rows.read(self._slots[request : request + 1])[0])
                room = int(self._rooms[request])
                if found == room or not room:  # without a room: a warm-up, which is transferred from nobody
                    left.append((request, int(Action.COMMITTED)))
                elif found or self._options.gate:
                    left.append((request, int(Action.ABORTED)))
        return tuple(left)

    def _as_recorded(self, step: Step, left: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Return the requests that left as recorded, for a reason that is not in the polls, if they are still in the queue."""
        done = {request for request, _ in left}
        here = set(self._list.tolist()) - done
        causes = forced(decides=self._decides)
        return tuple((request, action) for request, action in step.acts if request in here and action in causes)

    def _take_held(self) -> tuple[int, ...]:
        held = tuple(sorted(self._held))
        self._held.clear()
        return held

    # ---- reducing ----------------------------------------------------------------------------------------------------

    def _ours(self, group: dist.ProcessGroup | None) -> Reduce:
        element = getattr(torch, self._plan.element)
        device = self._options.device if self._options.backend == "nccl" else "cpu"
        gate = self._options.gate and self._has_rows

        def reduce(polls: Polls, queue: NDArray[np.int64]) -> Polls:
            if gate and (polls == _SUCCESS).any():
                waits = (polls == _SUCCESS) & (self._rows.read(self._slots[queue]) == 0) & (self._rooms[queue] != 0)
                if waits.any():
                    polls[waits] = _TRANSFERRING
                    self._held.update(queue[waits].tolist())
            count = len(polls)
            if count not in self._buffers:
                tensor = torch.empty(count, dtype=element, device=device)
                self._buffers[count] = tensor, tensor.numpy() if device == "cpu" else np.empty(0)
            tensor, view = self._buffers[count]
            if device == "cpu":
                view[:] = polls
            else:
                tensor.copy_(torch.from_numpy(polls))
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group)
            return view if device == "cpu" else tensor.cpu().numpy()

        return reduce

    def _theirs(self, ours: Reduce, engine: Any) -> Reduce:
        """Reduce by the engine's own functions, and by pdctl's, to find differences."""

        def reduce(polls: Polls, queue: NDArray[np.int64]) -> Polls:
            said: Polls = np.array(
                engine.reduced(polls.tolist(), self._slots[queue].tolist(), self._rooms[queue].tolist()), np.uint8
            )
            mine = ours(polls, queue)
            if said.tolist() != mine.tolist():
                text = f"the engine's functions reduced to {said.tolist()[:16]}, ours to {mine.tolist()[:16]}"
                self._log.write(Line("differs", self._position.read().round, text=text))
            return said

        return reduce

    def _watch(self) -> None:
        seen, since = self._position.read(), time.monotonic()
        while seen.where is not Where.DONE:
            time.sleep(min(0.1, self._options.stall_s / 4))
            now = self._position.read()
            if now != seen or now.where is not Where.IN_COLLECTIVE:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._options.stall_s:
                self._log.write(Line("hung", now.round, list=tuple(self._list.tolist())))
                self._ended(EXIT_HUNG)


def work(folder: Path, rank: int) -> NoReturn:
    """Run a worker and end this process. The folder has ``plan`` and ``options``."""
    plan = structs.from_msgpack((folder / "plan").read_bytes(), Plan)
    options = structs.from_json((folder / "options").read_bytes(), Options)
    torch.set_num_threads(1)
    if options.backend == "nccl":
        torch.cuda.set_device(rank)
    store = torch._C._distributed_c10d.FileStore(str(folder / "store"), len(plan.ranks))
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=len(plan.ranks))
    Worker(plan, rank, options, folder).run()
    stay(store, rank, len(plan.ranks), options.stall_s)
    os._exit(0)  # without a goodbye to the group: a peer may hang in it


def stay(store: Any, rank: int, size: int, stall_s: float) -> None:
    """Wait until every rank is done, or must have noticed its hang: a peer that leaves would end a collective."""
    store.set(f"done/{rank}", b"1")
    with contextlib.suppress(dist.DistError, RuntimeError):  # they hang
        store.wait([f"done/{peer}" for peer in range(size)], timedelta(seconds=2 * stall_s + 5))
