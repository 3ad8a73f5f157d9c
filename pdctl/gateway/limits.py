"""Limits on the agent's thread for the clients of a gateway: budgets of CPU time that refill.

The cost of a question is the CPU time of the agent's thread while it handles the question: a question for a recording costs a
hundred times as much as one for a status. A client over its budget waits, and is not read from meanwhile. One connection gets
less than its key, and one key less than all clients together. So neither a connection nor a key can use up the thread.
"""

from __future__ import annotations

from collections import OrderedDict

from pdctl.protocol.budget import Budget, budget_of

CONNECTION_SHARE = 0.10
"""Seconds of CPU a second that one connection may use, once its burst is used up."""
KEY_SHARE = 0.20
ALL_SHARE = 0.50
"""The same for all keys together: half of the thread is left to the clients of this host."""
BURST_S = 1.0
"""Seconds of CPU that may be used at once: a recording of 1 GiB through the socket takes about this much."""
MAX_KNOWN = 4096


class Limits:
    """Budgets of connections, of keys, and of all. At most MAX_KNOWN of each are kept, those used last."""

    def __init__(self, now: float) -> None:
        self._connections: OrderedDict[bytes, Budget] = OrderedDict()
        self._keys: OrderedDict[bytes, Budget] = OrderedDict()
        self._all = Budget(ALL_SHARE, now, BURST_S)

    def due(self, connection: bytes, key: bytes, now: float) -> float:
        """Return the seconds until a question of this connection may be asked, 0 for now."""
        mine = budget_of(self._connections, connection, CONNECTION_SHARE, BURST_S, MAX_KNOWN, now)
        of_key = budget_of(self._keys, key, KEY_SHARE, BURST_S, MAX_KNOWN, now)
        return max(mine.due(now), of_key.due(now), self._all.due(now))

    def took(self, connection: bytes, key: bytes, seconds: float) -> None:
        """Note that this connection's question took ``seconds`` of CPU."""
        for budgets, name in ((self._connections, connection), (self._keys, key)):
            if name in budgets:
                budgets[name].take(seconds)
        self._all.take(seconds)
