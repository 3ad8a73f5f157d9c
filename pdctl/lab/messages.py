"""Messages of the load generator to a rank. What comes from a socket is checked here, before any rank acts on it."""

from __future__ import annotations

from typing import Annotated, Any, Union

import msgspec
from msgspec import Meta

from pdctl.lab.config import MAX_ROOM

MAX_RID = 256
MAX_TOKENS = 1 << 20
MAX_MESSAGE = 16 << 20
MAX_PATH = 107
"""Bytes of a socket's path; ZeroMQ raises for a longer one, or none."""

Rid = Annotated[str, Meta(max_length=MAX_RID)]
Place = Annotated[int, Meta(ge=0, le=1 << 16)]


class _Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """One message, told apart by ``op``."""


class Generate(_Message, frozen=True):
    """A request. reply: ZeroMQ endpoint for the answer. tag: number of the client's connection; the answer has it, too.

    bootstrap_host, bootstrap_port: bootstrap server of the request's prefill server, as a router puts it into a request.
    """

    rid: Rid
    room: Annotated[int, Meta(ge=0, le=MAX_ROOM)]
    prompt: Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 31)]], Meta(min_length=1, max_length=MAX_TOKENS)]
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    reply: Annotated[str, Meta(pattern="^ipc://[^\0]+$")]
    bootstrap_host: Annotated[str, Meta(max_length=256)] = ""
    bootstrap_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    tag: Annotated[int, Meta(ge=0, le=MAX_ROOM)] = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an endpoint that no socket can have."""
        if len(self.reply.removeprefix("ipc://").encode()) > MAX_PATH:
            raise ValueError("reply has too long a path")


class Abort(_Message, frozen=True):
    """The end of a request that its client gave up."""

    rid: Rid


class Lose(_Message, frozen=True):
    """A request that decode rank ``tp`` alone loses."""

    rid: Rid
    tp: Place


class Crash(_Message, frozen=True):
    """An exception in the scheduler of one rank."""

    pp: Place
    tp: Place


_DECODER = msgspec.msgpack.Decoder(Union[Generate, Abort, Lose, Crash])  # noqa: UP007  # msgspec wants it on 3.10


def encode(message: Generate | Abort | Lose | Crash) -> bytes:
    """Return a message as it travels."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> dict[str, Any]:
    """Return a checked message as the map that ranks hand on. Raises ValueError for one that is none."""
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"{len(data)} bytes")
    try:
        return msgspec.to_builtins(_DECODER.decode(data))  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
