"""How many requests a rank has in a queue, and where it is now. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.queues import formatting
from pdctl.probes.queues.model import RankNow, RankView
from pdctl.protocol.model import COMPARED_QUEUES, Phase


def length_of(view: RankView | None, queue: str) -> int | None:
    """Return how many requests a rank has in a queue, by its answer or its recording, None where neither tells."""
    if view is None:
        return None
    if view.snapshot is not None:
        entries = view.snapshot.queues.get(queue)
        return None if entries is None else len(entries)
    if view.recording is None or queue not in COMPARED_QUEUES:
        return None
    visits = view.recording.visits.get(queue)
    stream = view.recording.stream(queue)
    if visits is not None and visits.empty:
        return 0
    if stream is None:
        return None if visits is None else 0
    run = stream.newest
    return run.n_after if run.phase is Phase.APPLIED else run.n


def age_of(view: RankView) -> float | None:
    """Return the seconds since a rank's last turn began, None where that is not known."""
    if view.status is not None and view.status.tick_mono_ns:
        return max(0.0, (view.status.mono_ns - view.status.tick_mono_ns) / 1e9)
    if view.recording is not None and view.now_ns is not None and view.recording.tick_mono_ns:
        return max(0.0, (view.now_ns - view.recording.tick_mono_ns) / 1e9)
    return None


def now(name: str, view: RankView | None, batch: Sequence[int] = ()) -> RankNow:
    """Return where the rank called ``name`` is. batch: rooms of interest that are in its batch."""
    if view is None:
        return RankNow(name, "no agent", "nothing is known of it")
    state = view.state
    if state != "outside":
        state = "live" if view.status is not None else "silent" if state == "live" else state
    doing = formatting.doing(view) or view.silence
    if batch:
        doing += f", with {formatting.rooms(batch)} in its batch"
    if view.silence not in ("", state, doing):
        doing = f"{view.silence}; {doing}" if doing else view.silence
    return RankNow(name, state, doing, age_of(view), formatting.last_round(view))
