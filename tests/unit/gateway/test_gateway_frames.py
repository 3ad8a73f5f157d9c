"""Frames counted before libzmq keeps them: what a client may send, and where it stops being read from."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.gateway.frames import MAX_FRAME, PRICE, WINDOW, Frames, NoQuestion

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


def framed(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body


def shaken(commands: int = 2) -> Frames:
    frames = Frames(commands)
    frames.feed(GREETING + b"".join(framed(b"x" * 200, 4) for _ in range(commands)))
    assert frames.owed == 0
    return frames


@given(st.lists(st.binary(max_size=700), max_size=12), st.data())
def test_frames_are_counted_however_they_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    frames = shaken()
    left = b"".join(map(framed, bodies))
    while left:
        step = data.draw(st.integers(1, len(left)))
        frames.feed(left[:step])
        left = left[step:]
    assert frames.owed == sum(PRICE + len(body) for body in bodies)
    frames.taken(len(bodies))
    assert frames.owed == 0


@pytest.mark.parametrize("size", [0, 1, 100, 5000, MAX_FRAME])
def test_what_is_never_taken_stays_bounded(size: int) -> None:
    frames, message = shaken(), framed(b"x" * size, 1)
    read, stream = 0, message * (2 * WINDOW // len(message) + 2)
    while (room := frames.room()) and read < len(stream):
        frames.feed(stream[read : read + room])
        read += room
    assert frames.room() == 0, "it is not read from any more"
    assert frames.owed <= WINDOW + PRICE + MAX_FRAME


def test_a_frame_of_the_largest_size_always_comes_through() -> None:
    frames, question = shaken(), framed(b"x" * MAX_FRAME)
    for _ in range(3):
        at = 0
        while at < len(question):
            room = frames.room()
            assert room
            frames.feed(question[at : at + room])
            at += room
        frames.taken(1)
        assert frames.owed == 0


def test_commands_after_the_handshake_have_their_price() -> None:
    frames = shaken(1)
    frames.feed(framed(b"x" * 10, 4) * 5)
    assert frames.owed == 5 * (PRICE + 10)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\n".ljust(64),
        GREETING[:10] + b"\x01" + GREETING[11:],  # ZMTP 2, whose frames are others
        b"\x01" + GREETING[1:],  # ZMTP 1
        GREETING + b"\x02" + struct.pack(">Q", MAX_FRAME + 1),
        GREETING + b"\x02" + b"\xff" * 8,
    ],
)
def test_what_no_client_of_an_agent_sends(start: bytes) -> None:
    frames = Frames(2)
    with pytest.raises(NoQuestion):
        frames.feed(start)
