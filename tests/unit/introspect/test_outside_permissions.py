from __future__ import annotations

from dataclasses import replace

import pytest

from pdctl.introspect.permissions import CAP_SYS_PTRACE, Credentials, judge

PTRACE = 1 << CAP_SYS_PTRACE
USER = Credentials((1000,) * 3, (1000,) * 3, 0, users="user:[1]", pids="pid:[1]")
ROOT = Credentials((0,) * 3, (0,) * 3, PTRACE | 1, users="user:[1]", pids="pid:[1]")


@pytest.mark.parametrize(
    ("me", "target", "yama", "what", "words"),
    [
        (USER, replace(USER, uids=(1001,) * 3), 0, "uid", "uid 1001"),
        (USER, replace(USER, gids=(1001,) * 3), 0, "uid", "gid 1001"),
        (USER, replace(USER, uids=(1000, 1000, 0)), 0, "uid", "uid 1000"),
        (replace(ROOT, permitted=1), USER, 0, "uid", "without CAP_SYS_PTRACE"),
        (ROOT, replace(USER, users="user:[2]"), 0, "uid", "in its user namespace"),
        (replace(ROOT, permitted=1), replace(ROOT, permitted=3), 0, "capabilities", "mask 0000000000000002"),
        (USER, replace(USER, dumpable=False), 0, "dumpable", "PR_SET_DUMPABLE"),
        (USER, USER, 1, "yama", "only a parent"),
        (USER, USER, 2, "yama", "administrator"),
        (ROOT, USER, 3, "yama", "no process"),
        (replace(USER, seccomp=2), USER, 0, "seccomp", "seccomp filter"),
        (USER, replace(USER, pids="pid:[2]"), 0, "pid namespace", "another pid namespace"),
        (USER, USER, 0, "unknown", "security module"),
        # the first condition that fails is named, whatever else fails too
        (USER, replace(USER, uids=(1001,) * 3, permitted=3, dumpable=False), 1, "uid", "uid 1001"),
        (USER, replace(USER, permitted=3, dumpable=False), 1, "capabilities", "mask"),
        (
            replace(ROOT, permitted=0),
            replace(ROOT, permitted=0, dumpable=None),
            0,
            "dumpable",
            "nothing else forbids it",
        ),
        (USER, replace(USER, dumpable=False), 2, "dumpable", "unreadable"),
        (replace(USER, seccomp=2), USER, 1, "yama", "ptrace_scope is 1"),
    ],
)
def test_the_first_condition_that_fails_is_named(
    me: Credentials, target: Credentials, yama: int, what: str, words: str
) -> None:
    refusal = judge(me, target, yama=yama, descends=False)
    assert refusal.what == what
    assert words in refusal.why
    assert refusal.cure.endswith(".")


def test_what_a_capability_makes_up_for_is_not_named() -> None:
    target = replace(USER, uids=(7,) * 3, permitted=2, dumpable=False)
    assert judge(ROOT, target, yama=2, descends=False).what == "unknown"


def test_a_parent_may_read_its_child_under_yama() -> None:
    assert judge(USER, USER, yama=1, descends=True).what == "unknown"
