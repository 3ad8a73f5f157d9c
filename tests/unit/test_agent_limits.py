"""Budgets of CPU time: what one connection and one key may use of the agent's thread."""

from __future__ import annotations

from pdctl.agent.limits import BURST_S, CONNECTION_SHARE, KEY_SHARE, MAX_KNOWN, Limits


def used(limits: Limits, connection: bytes, key: bytes, start: float, end: float, cost: float, every: float) -> float:
    """Return the seconds that a client which asks ``every`` so often gets between start and end."""
    total, now = 0.0, start
    while now < end:
        if limits.allows(connection, key, now):
            limits.took(connection, key, cost)
            total += cost
        now += every
    return total


def test_a_client_that_asks_seldom_is_never_refused() -> None:
    limits = Limits()
    assert used(limits, b"c", b"k", 0.0, 600.0, cost=0.005, every=0.1) == sum([0.005] * 6000)
    assert limits.refused == 0


def test_one_connection_gets_its_share_and_no_more() -> None:
    for every in (0.0001, 0.01):
        got = used(Limits(), b"c", b"k", 0.0, 100.0, cost=0.02, every=every)
        assert 0.9 * CONNECTION_SHARE * 100 <= got <= BURST_S + CONNECTION_SHARE * 100 + 0.02


def test_connections_of_one_key_share_the_keys_budget() -> None:
    limits = Limits()
    now, got = 0.0, 0.0
    while now < 100.0:
        for n in range(20):
            if limits.allows(b"c%d" % n, b"k", now):
                limits.took(b"c%d" % n, b"k", 0.01)
                got += 0.01
        now += 0.05
    assert got <= BURST_S + KEY_SHARE * 100 + 0.2
    assert limits.allows(b"other", b"another key", now)


def test_a_question_that_cost_much_is_paid_off() -> None:
    limits = Limits()
    assert limits.allows(b"c", b"k", 0.0)
    limits.took(b"c", b"k", 3.0)  # one dump of a very large rank
    assert not limits.allows(b"c", b"k", 1.0)
    assert limits.allows(b"c", b"k", 2.0 / CONNECTION_SHARE + 1.0)


def test_it_is_told_once_a_second_and_old_ones_are_forgotten() -> None:
    limits = Limits()
    limits.allows(b"c", b"k", 0.0)
    assert limits.tell(b"c", 0.0)
    assert not limits.tell(b"c", 0.5)
    assert limits.tell(b"c", 1.5)
    for n in range(MAX_KNOWN + 10):
        limits.allows(b"%d" % n, b"k", 2.0)
    assert not limits.tell(b"c", 9.0)
