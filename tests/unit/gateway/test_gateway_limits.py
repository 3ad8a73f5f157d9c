"""Budgets of CPU time: what one connection, one key and all of them may use of the agent's thread."""

from __future__ import annotations

from pdctl.gateway.limits import ALL_SHARE, BURST_S, CONNECTION_SHARE, KEY_SHARE, MAX_KNOWN, Limits


def used(limits: Limits, connection: bytes, key: bytes, start: float, end: float, cost: float, every: float) -> float:
    """Return the seconds that a client which asks ``every`` so often gets between start and end."""
    total, now = 0.0, start
    while now < end:
        if not limits.due(connection, key, now):
            limits.took(connection, key, cost)
            total += cost
        now += every
    return total


def test_a_client_that_asks_seldom_never_waits() -> None:
    assert used(Limits(0.0), b"c", b"k", 0.0, 600.0, cost=0.005, every=0.1) == sum([0.005] * 6000)


def test_one_connection_gets_its_share_and_no_more() -> None:
    for every in (0.0001, 0.01):
        got = used(Limits(0.0), b"c", b"k", 0.0, 100.0, cost=0.02, every=every)
        assert 0.9 * CONNECTION_SHARE * 100 <= got <= BURST_S + CONNECTION_SHARE * 100 + 0.02


def shared(keys: int) -> tuple[Limits, float]:
    """Return what many connections of so many keys get in 100 seconds, each always asking."""
    limits, now, got = Limits(0.0), 0.0, 0.0
    while now < 100.0:
        for n in range(20):
            connection, key = b"c%d" % n, b"k%d" % (n % keys)
            if not limits.due(connection, key, now):
                limits.took(connection, key, 0.01)
                got += 0.01
        now += 0.05
    return limits, got


def test_connections_of_one_key_share_the_keys_budget() -> None:
    limits, got = shared(1)
    assert got <= BURST_S + KEY_SHARE * 100 + 0.2
    assert not limits.due(b"other", b"another key", 100.0)


def test_all_keys_together_leave_half_of_the_thread_to_this_host() -> None:
    _, got = shared(20)
    assert 0.9 * ALL_SHARE * 100 <= got <= BURST_S + ALL_SHARE * 100 + 0.2


def test_a_question_that_cost_much_is_waited_for() -> None:
    limits = Limits(0.0)
    assert not limits.due(b"c", b"k", 0.0)
    limits.took(b"c", b"k", 3.0)  # one dump of a very large rank
    assert round(limits.due(b"c", b"k", 1.0)) == round(2.0 / CONNECTION_SHARE - 1)
    assert not limits.due(b"c", b"k", 2.0 / CONNECTION_SHARE + 1.0)


def test_old_ones_are_forgotten() -> None:
    limits = Limits(0.0)
    limits.due(b"c", b"k", 0.0)
    limits.took(b"c", b"k", 1.2)
    assert limits.due(b"c", b"k", 0.1) > 0
    for n in range(MAX_KNOWN + 10):
        limits.due(b"%d" % n, b"k%d" % n, 0.1)
    limits.took(b"c", b"k", 50.0)  # of no budget but that of all
    assert limits.due(b"c", b"k", 0.1) == limits.due(b"d", b"e", 0.1)
