"""The columns of a recording's rings, for all records at once, whether its streams are known or not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdctl.recording import rings
from pdctl.recording.reader import Recording
from pdctl.recording.streams import Stream


def events(recording: Recording) -> NDArray[Any]:
    """Return the sound events of a recording as rings.EVENT, by ``seq``, those of unknown kinds, too."""
    _, _, _, _, offset, capacity = recording.rings
    return rings.events(recording.source, offset, capacity)


def rounds(streams: list[Stream]) -> NDArray[Any]:
    """Return the runs of all streams, one stream after the other."""
    return np.concatenate([stream.table for stream in streams]) if streams else np.zeros(0, rings.ROUND)


def items(recording: Recording, runs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
    """Return (items, row of ``runs`` each belongs to, for each run whether its items are in the file).

    runs: of :func:`rounds`. Items of a run follow one another as they were written. Fields that the run's phase has not
    reached are UNKNOWN, and flags 0.
    """
    _, _, offset, capacity, _, _ = recording.rings
    span = rings.ItemSpan.read(recording.source, offset, capacity, runs)
    known = span.sound(runs)
    found, row = span.of(runs, known)
    rings.hide(found, runs, row)
    return found, row, known
