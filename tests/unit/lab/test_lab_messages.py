"""What a lab's rank takes from its request socket, and what it drops."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pdctl.lab import messages
from pdctl.lab.config import MAX_ROOM

GOOD: dict[str, Any] = {
    "op": "generate", "rid": "a", "room": 5, "prompt": [1, 2], "max_new_tokens": 8, "reply": "ipc:///x",
    "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "tag": 3,
}  # fmt: skip


def test_a_request_comes_out_as_it_went_in() -> None:
    assert messages.decode(msgspec.msgpack.encode(GOOD)) == GOOD
    assert messages.decode(messages.encode(messages.Abort("a"))) == {"op": "abort", "rid": "a"}
    assert messages.decode(messages.encode(messages.Crash(0, 1))) == {"op": "crash", "pp": 0, "tp": 1}
    assert messages.decode(msgspec.msgpack.encode({**GOOD, "room": MAX_ROOM}))["room"] == MAX_ROOM


@pytest.mark.parametrize(
    "wrong",
    [
        {"room": MAX_ROOM + 1},
        {"room": (1 << 64) - 1},
        {"room": -1},
        {"room": "5"},
        {"op": "else"},
        {"op": 5},
        {"prompt": []},
        {"prompt": [1 << 31]},
        {"prompt": None},
        {"max_new_tokens": 0},
        {"reply": "tcp://elsewhere:1"},
        {"reply": "ipc://"},
        {"reply": f"ipc:///{'x' * 107}"},
        {"rid": "x" * 257},
        {"bootstrap_port": 65536},
    ],
    ids=str,
)
def test_what_is_no_request_is_dropped(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.decode(msgspec.msgpack.encode({**GOOD, **wrong}))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91" * 2000, msgspec.msgpack.encode([GOOD]), b"\x81\xa2op"])
def test_what_is_no_message_is_dropped(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.decode(data)
