"""Ranks on another host that are asked without a network: what their agents would answer of their recordings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from pdctl.protocol.rank import Access, Answer, FoundRank, Silence
from pdctl.recording import format as f
from pdctl.recording.answers import Known, answer
from pdctl.recording.excerpt import Wanted
from pdctl.recording.reader import parse
from pdctl.targets.client import Client


def far_ranks(recordings: Mapping[int, bytes]) -> tuple[FoundRank, ...]:
    """Return a rank for each of these recordings."""
    return tuple(
        FoundRank(parse(data).identity, "live", endpoint=f"tcp://far:{pid}", access=Access(), recording_size=len(data))
        for pid, data in recordings.items()
    )


class Far(Client):
    """A client of such ranks, by their pids. old: those whose agents do not know what is asked for.

    fetched: those whose whole recordings were asked for.
    """

    def __init__(self, recordings: Mapping[int, bytes], old: Collection[int] = ()) -> None:
        super().__init__(timeout_s=60, rank_timeout_s=60)
        self.fetched: set[int] = set()
        self._recordings, self._old = recordings, old

    def ask_each(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any) -> list[Answer[Any]]:
        """Answer from the recordings."""
        return [Answer(rank, *self._said(rank.identity.pid, op, args)) for rank, args in questions]

    def _said(self, pid: int, op: str, args: dict[str, Any]) -> tuple[Any, Silence, str]:
        data = self._recordings[pid]
        if op == "recording":
            self.fetched.add(pid)
            return data[args["offset"] : args["offset"] + args["length"]], Silence.NONE, ""
        if pid in self._old:
            return None, Silence.ERROR, "Object contains unknown field `rids`"
        return answer(Known(parse(data)), msgspec.convert(args, Wanted), data[: f.RINGS_OFFSET]), Silence.NONE, ""
