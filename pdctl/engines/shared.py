"""What engines of SGLang's shape have in common, whoever reads them."""

from __future__ import annotations

from typing import Any

from pdctl.model import KVPoll

LEAVES: dict[str, frozenset[int]] = {
    "prefill.bootstrap": frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT}),
    "prefill.inflight": frozenset({KVPoll.FAILED, KVPoll.SUCCESS}),
    "decode.prealloc": frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT}),
    "decode.transfer": frozenset({KVPoll.FAILED, KVPoll.SUCCESS}),
}
"""Reduced polls with which a request may leave a polled queue."""

_HANDSHAKE = frozenset({KVPoll.FAILED, KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT})
_TRANSFER = frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING, KVPoll.SUCCESS})

POLLED_STATES: dict[str, frozenset[int]] = {
    "prefill.bootstrap": _HANDSHAKE,
    "prefill.inflight": _TRANSFER,
    "decode.prealloc": _HANDSHAKE,
    "decode.transfer": _TRANSFER | {KVPoll.BOOTSTRAPPING},
}
"""Reduced polls that the engine expects in a queue; it raises on others (SGLang 0.5.10.post1 to 0.5.23)."""


def group_number(group: Any) -> int:
    """Return the number PyTorch's flight recorder knows a group by (its name is that number), -1 for another name."""
    name = str(getattr(group, "group_name", ""))
    return int(name) if name.isdecimal() else -1
