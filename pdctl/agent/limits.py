"""How much of the agent's thread the clients of a TCP socket may use: a few budgets of CPU time that fill up again.

What counts is the time that answering took on this thread, not the number of questions: a question for a recording costs
a hundred times as much as one for a status. Over its budget a client's questions are dropped unread, and it is told once
a second. One connection gets less than its key, a key less than there is, so that neither one connection nor one key can
use up what others need; ZeroMQ takes questions from all connections in turn.
"""

from __future__ import annotations

from collections import OrderedDict

CONNECTION_SHARE = 0.10
"""Seconds of CPU a second that one connection may use, once its burst is used up."""
KEY_SHARE = 0.20
BURST_S = 1.0
"""Seconds of CPU that may be used at once: a recording of 1 GiB through the socket takes about this much."""
MAX_KNOWN = 4096
TELL_EVERY_S = 1.0


class Budget:
    """Seconds of CPU that are left to somebody; they come back at ``share`` a second, up to BURST_S."""

    __slots__ = ("_at", "_left", "_share", "told_at")

    def __init__(self, share: float, now: float) -> None:
        self._share, self._left, self._at = share, BURST_S, now
        self.told_at = now - TELL_EVERY_S

    def left(self, now: float) -> float:
        """Return the seconds left at ``now`` (monotonic); under 0 when the last question took more than there was."""
        self._left = min(BURST_S, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left

    def take(self, seconds: float) -> None:
        """Note that answering took ``seconds``."""
        self._left -= seconds


class Limits:
    """Budgets of connections and of keys. At most MAX_KNOWN of each are kept, those used last."""

    def __init__(self) -> None:
        self._connections: OrderedDict[bytes, Budget] = OrderedDict()
        self._keys: OrderedDict[bytes, Budget] = OrderedDict()
        self.refused = 0

    def allows(self, connection: bytes, key: bytes, now: float) -> bool:
        """Return whether a question of this connection is to be answered."""
        mine = _of(self._connections, connection, CONNECTION_SHARE, now)
        if mine.left(now) > 0 and _of(self._keys, key, KEY_SHARE, now).left(now) > 0:
            return True
        self.refused += 1
        return False

    def took(self, connection: bytes, key: bytes, seconds: float) -> None:
        """Note that answering this connection's question took ``seconds`` of CPU."""
        for budgets, name in ((self._connections, connection), (self._keys, key)):
            if name in budgets:
                budgets[name].take(seconds)

    def tell(self, connection: bytes, now: float) -> bool:
        """Return whether it is time to tell this connection that it is over its budget."""
        budget = self._connections.get(connection)
        if budget is None or now - budget.told_at < TELL_EVERY_S:
            return False
        budget.told_at = now
        return True


def _of(budgets: OrderedDict[bytes, Budget], name: bytes, share: float, now: float) -> Budget:
    budget = budgets.get(name)
    if budget is None:
        budget = budgets[name] = Budget(share, now)
        if len(budgets) > MAX_KNOWN:
            budgets.popitem(last=False)
    else:
        budgets.move_to_end(name)
    return budget
