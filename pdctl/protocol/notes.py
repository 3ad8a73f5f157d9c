"""Texts of events in recordings: how those begin that are looked for."""

from __future__ import annotations

ABORTED = "Aborted by AbortReq"
"""How the engine's reason for a request begins that a client aborted, or that decode itself gave up on."""
LOST = (
    "Lost connection with prefill", "Losing connection with prefill", "Could not fetch bootstrap info",
    "Prefill server with bootstrap_addr",
)  # fmt: skip
"""How the engine's reasons begin for requests whose prefill server decode could not reach."""
TOLD_FAILED = "Failed to get kvcache from prefill"
"""How the engine's reason begins on decode for a request that prefill has said to have failed."""
SESSION_LOST = "Decode instance could be dead"
"""How the engine's reason begins for a request whose decode rank prefill takes for dead, since a transfer to it had failed."""
WRONG_KV = "KV checksum mismatch"
"""How the engine's reason begins for a request that it drops since its KV is not what prefill sent."""
WRONG_ELSEWHERE = f"{WRONG_KV} on a peer rank"
"""How it begins on a rank whose own KV of the request is right."""
EVERY_REQUEST = "all requests"
"""Text of an ABORT event that means all of them."""
AGENT_ENDED = "agent ended"
"""How the NOTE begins that the agent's thread leaves in the recording when it ends before its process does."""
SCHEDULER_ENDED = "scheduler ended"
"""How the NOTE begins that a rank leaves when an exception ends its scheduler: ``scheduler ended: TypeError in poll, x.py:9``.
A rank that was killed leaves none."""
THREAD_ENDED = "thread ended"
"""How the NOTE begins that a rank leaves when a thread of its engine ends that should not: then come its function, and type and
place of its exception if it had one, as in ``bootstrap_thread: AssertionError, conn.py:9``."""
ROLE_CHANGED = "role changed"
"""How the NOTE begins that a rank leaves when its engine gives it another role: ``role changed: prefill to decode``."""
