"""Checksums of many records at once find what those of each record find."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pytest

from pdctl.recording import format as f
from pdctl.recording import sums
from pdctl.recording.rings import EVENT, ROUND
from pdctl.recording.sums import record_sums, right_sums

COUNT = 500


def records(size: int, body: int, draw: random.Random) -> bytes:
    """Return records with their sums."""
    bodies = [draw.randbytes(body) for _ in range(COUNT)]
    return b"".join(one + bytes(size - body - 4) + crc32(one).to_bytes(4, "little") for one in bodies)


@pytest.mark.parametrize("body", [f.ROUND_BODY_SIZE, f.EVENT.size])
def test_each_damaged_record_is_found_and_no_other(body: int) -> None:
    dtype = ROUND if body == f.ROUND_BODY_SIZE else EVENT
    draw = random.Random(body)
    sound = records(dtype.itemsize, body, draw)
    for damaged in (0, 1, 2, 9, 70):
        data = bytearray(sound)
        for at in draw.sample(range(len(data)), damaged):
            data[at] ^= 1 << draw.randrange(8)
        carried = np.frombuffer(bytes(data), dtype)["crc"]
        few = np.array(sorted(draw.sample(range(COUNT), 300)), np.int64)
        for places in (np.arange(COUNT), np.arange(40, COUNT), few, np.arange(0)):
            found = right_sums(bytes(data), places, carried[places], dtype.itemsize, body)
            right = record_sums(bytes(data), places, dtype.itemsize, body) == carried[places]
            assert found.tolist() == right.tolist()
            assert not damaged or not len(places) or damaged < 9 or not found.all()


def test_records_that_are_whole_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(records(f.ROUND_SIZE, f.ROUND_BODY_SIZE, random.Random(3)))
    data[100 * f.ROUND_SIZE] ^= 1
    looked: list[int] = []

    def noted(data: bytes, places: np.ndarray, size: int, body: int) -> np.ndarray:
        looked.extend(places.tolist())
        return record_sums(data, places, size, body)

    monkeypatch.setattr(sums, "record_sums", noted)
    carried = np.frombuffer(bytes(data), ROUND)["crc"]
    found = right_sums(bytes(data), np.arange(COUNT), carried, f.ROUND_SIZE, f.ROUND_BODY_SIZE)
    assert np.flatnonzero(~found).tolist() == [100]
    assert looked == [*range(96, 128), *range(480, COUNT)], "a group with a torn record, and what is no group"
