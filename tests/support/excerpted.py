"""Judges views by excerpts of their recordings, as those of ranks on other hosts are, and by the whole ones: alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pdctl.probes.queues import judge as judges
from pdctl.probes.queues.excerpts import Reading, first_of
from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.recording import format as f
from pdctl.recording.answers import Known, answer
from pdctl.recording.excerpt import Part, Wanted, opened
from pdctl.recording.reader import Recording


def excerpted(views: Sequence[RankView], far: Sequence[int] | None = None) -> tuple[list[RankView], list[int]]:
    """Return the views with excerpts in place of recordings (of those numbered ``far``; default: all), and bytes sent of each.

    A rank whose whole recording has to be read has it, and 0 bytes.
    """
    sent = [0] * len(views)

    def ask(wanted: Mapping[int, Wanted]) -> dict[int, Part | None]:
        parts: dict[int, Part | None] = {}
        for n, one in wanted.items():
            recording = views[n].recording
            assert recording is not None
            asked = msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(one))), Wanted)
            data = msgspec.msgpack.encode(answer(Known(recording), asked, _head(recording)))
            sent[n] += len(data)
            parts[n] = msgspec.msgpack.decode(data, type=Part)
        return parts

    asked = [n for n, view in enumerate(views) if view.recording is not None and (far is None or n in far)]
    excerpts = {}
    for n, part in ask({n: first_of(views[n]) for n in asked}).items():
        assert part is not None
        recording = views[n].recording
        assert recording is not None
        excerpt = opened(part, recording.identity)
        if excerpt is not None:
            excerpts[n] = excerpt
    reading = Reading(views, excerpts, ask)
    reading.read()
    found = [views[n] if n in reading.whole else view for n, view in enumerate(reading.views)]
    return found, [0 if n in reading.whole or n not in excerpts else size for n, size in enumerate(sent)]


def _head(recording: Recording) -> bytes:
    return recording.source.read(0, f.RINGS_OFFSET)


def judge(views: Sequence[RankView], **options: Any) -> QueuesDocument:
    """Return the judgement of whole recordings, once that of excerpts has been found to be the same."""
    document = judges.judge(views, **options)
    some = [n for n in range(len(views)) if n % 2]
    for far in (None, some):
        short = [replace(view) for view in excerpted(views, far)[0]]
        assert judges.judge(short, **options) == document
    return document
