"""Judges ranks by excerpts of their recordings, as those on other hosts are, and by the whole ones: alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pdctl.probes.queues import judge as judges
from pdctl.probes.queues.excerpts import Reading, first_of
from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.probes.story import excerpts as excerpts_of_stories
from pdctl.probes.story import judge as stories
from pdctl.probes.story.model import RankPast, RoomStory
from pdctl.recording import format as f
from pdctl.recording.answers import Known, answer
from pdctl.recording.excerpt import Excerpt, Part, Wanted, opened
from pdctl.recording.reader import Recording


def excerpted(views: Sequence[RankView], far: Sequence[int] | None = None) -> tuple[list[RankView], list[int]]:
    """Return the views with excerpts in place of recordings (of those numbered ``far``; default: all), and bytes sent of each.

    A rank whose whole recording has to be read has it, and 0 bytes.
    """
    ask, sent = _asked([view.recording for view in views])
    excerpts = _opened(ask, {n: (view.recording, first_of(view)) for n, view in enumerate(views)}, far)
    reading = Reading(views, excerpts, ask)
    reading.read()
    found = [views[n] if n in reading.whole else view for n, view in enumerate(reading.views)]
    return found, [0 if n in reading.whole or n not in excerpts else size for n, size in enumerate(sent)]


def excerpted_pasts(
    pasts: Sequence[RankPast], asked: str, far: Sequence[int] | None = None
) -> tuple[list[RankPast], list[int]]:
    """Return pasts as :func:`excerpted` does views, for a story of ``asked``."""
    ask, sent = _asked([past.recording for past in pasts])
    wanted = {n: (past.recording, excerpts_of_stories.first_of(asked)) for n, past in enumerate(pasts)}
    excerpts = _opened(ask, wanted, far)
    near = {n: past.recording for n, past in enumerate(pasts) if past.recording is not None and n not in excerpts}
    whole: set[int] = set()

    def read(those: Sequence[int]) -> dict[int, Recording | None]:
        whole.update(those)
        return {n: pasts[n].recording for n in those}

    reading = excerpts_of_stories.Reading(asked, near, excerpts, ask, read)
    reading.read()
    found = [replace(past, recording=reading.recordings.get(n)) for n, past in enumerate(pasts)]
    return found, [0 if n in whole or n not in excerpts else size for n, size in enumerate(sent)]


def _asked(
    recordings: Sequence[Recording | None],
) -> tuple[Callable[[Mapping[int, Wanted]], dict[int, Part | None]], list[int]]:
    """Return what asks for parts of these recordings, and the bytes that were sent of each."""
    sent = [0] * len(recordings)

    def ask(wanted: Mapping[int, Wanted]) -> dict[int, Part | None]:
        parts: dict[int, Part | None] = {}
        for n, one in wanted.items():
            recording = recordings[n]
            assert recording is not None
            asked = msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(one))), Wanted)
            data = msgspec.msgpack.encode(answer(Known(recording), asked, _head(recording)))
            sent[n] += len(data)
            parts[n] = msgspec.msgpack.decode(data, type=Part)
        return parts

    return ask, sent


def _opened(
    ask: Callable[[Mapping[int, Wanted]], dict[int, Part | None]],
    wanted: Mapping[int, tuple[Recording | None, Wanted]],
    far: Sequence[int] | None,
) -> dict[int, Excerpt]:
    excerpts = {}
    asked = {n: one for n, (recording, one) in wanted.items() if recording and (far is None or n in far)}
    for n, part in ask(asked).items():
        recording = wanted[n][0]
        assert part is not None
        assert recording is not None
        excerpt = opened(part, recording.identity)
        if excerpt is not None:
            excerpts[n] = excerpt
    return excerpts


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


def story(pasts: Sequence[RankPast], room: int, *logs: Any) -> RoomStory:
    """Return the story by whole recordings, once that by excerpts has been found to be the same."""
    told = stories.story(pasts, room, *logs)
    for far in (None, [n for n in range(len(pasts)) if n % 2]):
        assert stories.story(excerpted_pasts(pasts, str(room), far)[0], room, *logs) == told
    return told
