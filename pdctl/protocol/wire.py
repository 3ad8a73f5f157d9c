"""Messages on a control socket: msgpack of msgspec structs, one request, one reply.

Within a host they go over a Unix stream socket (:mod:`pdctl.protocol.stream`). Between hosts each is one ZeroMQ frame.

Every message carries the protocol version, which is checked before the body is decoded. So an agent of another version is
reported, and not misread. Both sides refuse messages over MAX_MESSAGE bytes.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from pdctl.protocol import structs

PROTOCOL = 2
MAX_MESSAGE = 8 * 1024 * 1024
MAX_REQUEST = 64 * 1024
MAX_PACKED = 256 * 1024
"""Bytes of a reply that may travel packed: as many as any rank may answer with, so that few bytes are never many."""
_LEAST_PACKED = 256
NOT_AUTHORISED = "not authorised: "
"""How the error begins of a request that is refused because of who asks, whatever it asks for."""


class Request(msgspec.Struct):
    """One question to an agent.

    ``op``: ``hello status queues rooms settings metadata recording flight_recorder faults inject renew heal``. A
    gateway itself answers ``rounds`` (:mod:`pdctl.recording.excerpt`), where it can read its rank's recording.
    ``packs``: who asks reads a packed reply. Gateways pack, ranks never do.
    """

    op: str
    v: int = PROTOCOL
    id: int = 0
    args: dict[str, Any] = {}
    packs: bool = False


class Reply(msgspec.Struct):
    """An agent's answer. ``error`` is empty on success; ``code`` is an exit code of :mod:`pdctl.protocol.errors` otherwise."""

    v: int = PROTOCOL
    id: int = 0
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: int = 0


class Packed(msgspec.Struct):
    """A reply that travels packed. ``packed``: the reply, compressed by zlib."""

    packed: bytes
    v: int = PROTOCOL


class Envelope(msgspec.Struct):
    """The part of a message that is the same in every protocol version: the version. packed: as :class:`Packed` has it."""

    v: int
    packed: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_envelope = structs.msgpack_decoder(Envelope)
_request = structs.msgpack_decoder(Request)
_reply = structs.msgpack_decoder(Reply)


class ProtocolMismatch(ValueError):  # noqa: N818  # it names what was found, as the message does
    """The other side speaks another protocol version; ``version`` is the one it speaks."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the other side speaks protocol {version}, this pdctl speaks {PROTOCOL}")
        self.version = version


def encode(message: Any) -> bytes:
    """Return ``message`` (a struct, or plain tuples in a struct's shape) as msgpack."""
    return _encoder.encode(message)


def packed(reply: bytes) -> bytes:
    """Return an encoded reply packed, or as it is where that is no longer, or where it has over MAX_PACKED bytes."""
    if not _LEAST_PACKED <= len(reply) <= MAX_PACKED:
        return reply
    short = encode(Packed(zlib.compress(reply, 1)))
    return short if len(short) < len(reply) else reply


def _unpacked(data: bytes) -> bytes:
    machine = zlib.decompressobj()
    try:
        frame = machine.decompress(data, MAX_PACKED)
    except zlib.error as error:
        raise ValueError(f"its packed reply can't be read: {error}") from None
    if not machine.eof:
        raise ValueError(f"its packed reply is cut off, or over the limit of {MAX_PACKED} bytes")
    return frame


def _check(frame: bytes, limit: int) -> Envelope:
    if len(frame) > limit:
        raise ValueError(f"message of {len(frame)} bytes is over the limit of {limit}")
    try:
        envelope = _envelope.decode(frame)
    except RecursionError:
        raise ValueError("message is nested too deep") from None
    if envelope.v != PROTOCOL:
        raise ProtocolMismatch(envelope.v)
    return envelope


def decode_request(frame: bytes) -> Request:
    """Return the request in ``frame``. Raises ValueError (msgspec's errors are ValueErrors) or ProtocolMismatch."""
    _check(frame, MAX_REQUEST)
    return _request.decode(frame)


def decode_reply(frame: bytes) -> Reply:
    """Return the reply in ``frame``, unpacked. Raises ValueError for garbage, ProtocolMismatch for another version."""
    short = _check(frame, MAX_MESSAGE).packed
    if short:
        frame = _unpacked(short)
        _check(frame, MAX_PACKED)
    return _reply.decode(frame)
