"""Whatever arrives over a control socket is read right or refused with a ValueError, nothing else."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol import wire

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.text(), st.integers(0, 2**63), st.dictionaries(st.text(), plain, max_size=4))
def test_a_request_comes_back_as_it_was_sent(op: str, number: int, args: dict[str, object]) -> None:
    frame = wire.encode(wire.Request(op, id=number, args=args))
    if len(frame) <= wire.MAX_REQUEST:
        assert wire.decode_request(frame) == wire.Request(op, id=number, args=args)


@given(plain, st.text(), st.integers(0, 255))
def test_a_reply_comes_back_as_it_was_sent(body: object, error: str, code: int) -> None:
    reply = wire.decode_reply(
        wire.encode(wire.Reply(id=7, body=msgspec.Raw(wire.encode(body)), error=error, code=code))
    )
    assert (reply.id, reply.error, reply.code) == (7, error, code)
    assert msgspec.msgpack.decode(reply.body) == body


@given(st.binary(max_size=300))
def test_garbage_is_a_value_error(frame: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_reply):
        try:
            decode(frame)
        except ValueError:
            pass


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    frame = bytearray(wire.encode(wire.Request("status", id=3, args={"room": 7})))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(wire.decode_request(bytes(frame)), wire.Request)
    except ValueError:
        pass


@given(st.integers(-(2**63), 2**63).filter(lambda v: v != wire.PROTOCOL))
def test_another_protocol_is_named_whatever_the_rest_is(version: int) -> None:
    frame = wire.encode({"v": version, "op": ["not", "a", "string"], "new": {"field": 1}})
    with pytest.raises(wire.ProtocolMismatch) as caught:
        wire.decode_request(frame)
    assert caught.value.version == version
    assert str(version) in str(caught.value)


def test_the_version_is_always_on_the_wire() -> None:
    for message in (wire.Request("hello"), wire.Reply()):
        assert msgspec.msgpack.decode(wire.encode(message))["v"] == wire.PROTOCOL


def test_what_is_too_long_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        wire.decode_request(wire.encode(wire.Request("x" * wire.MAX_REQUEST)))
    body = msgspec.Raw(wire.encode(b"x" * wire.MAX_MESSAGE))
    with pytest.raises(ValueError, match="over the limit"):
        wire.decode_reply(wire.encode(wire.Reply(body=body)))


def test_a_packed_reply_is_read_as_the_reply_itself() -> None:
    frame = wire.encode(wire.Reply(id=7, body=msgspec.Raw(wire.encode(["decode.transfer"] * 50)), code=3))
    assert len(wire.packed(frame)) < len(frame) / 4
    assert wire.decode_reply(wire.packed(frame)) == wire.decode_reply(frame)
    for same in (wire.encode(wire.Reply(id=7)), frame + bytes(wire.MAX_PACKED)):
        assert wire.packed(same) is same


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (zlib.compress(bytes(wire.MAX_PACKED + 1)), "over the limit"),
        (zlib.compress(wire.encode(wire.Reply()))[:-5], "cut off"),
        (b"garbage", "can't be read"),
        (zlib.compress(b"garbage"), r".+"),
    ],
)
def test_what_is_packed_is_bounded_and_read_with_the_same_care(packed: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wire.decode_reply(wire.encode(wire.Packed(packed)))


def test_a_packed_reply_of_another_protocol_is_named() -> None:
    with pytest.raises(wire.ProtocolMismatch):
        wire.decode_reply(wire.encode(wire.Packed(zlib.compress(wire.encode(wire.Reply(v=99))))))
