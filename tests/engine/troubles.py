"""What the tests of pairs in trouble share: `check` as a document, long forwards, stopped processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.engine.env import EngineEnv
from tests.engine.harness import Pair
from tests.support.patience import patience, until

SLOW = "PDCTL_TEST_SLOW"
REFUSED = "PD145"
"""What `check` goes on to say for ten minutes after decode has given an address up."""


def that_can_be_slow(env: EngineEnv, folder: Path) -> EngineEnv:
    """A copy of ``env`` for :func:`long_forward`."""
    return env.with_patches("slow-forward").with_environ(**{SLOW: str(folder / "slow")})


def asked(pair: Pair, *words: str) -> tuple[int, dict[str, Any]]:
    """Run a command with ``-o json`` and return its exit code and document."""
    limits = ("--timeout", f"{patience(40):g}", "--rank-timeout", f"{patience(2):g}")
    done = pair.pdctl(*words, "-o", "json", *limits, limit_s=90)
    assert done.stdout, f"exit {done.returncode}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


def findings(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is more than information, causes first."""
    return [found for found in document["findings"] if found["level"] != "info"]


def is_clean(pair: Pair, unseen: Collection[str] = ("routing",)) -> None:
    """`check` finds nothing and could look at everything, but for these stages."""
    status, seen = asked(pair, "check", "--pause", "1s", "--suppress", REFUSED)
    assert not findings(seen), seen["findings"]
    assert status in (0, 3), seen
    assert {stage["level"] for stage in seen["stages"] if stage["stage"] not in unseen} <= {"ok", "info"}, seen[
        "stages"
    ]


def says_first(
    pair: Pair, codes: Sequence[str], rooms: set[int] | None = None, *, beside: Collection[int] = ()
) -> dict[str, Any]:
    """Wait until `check` begins with one of these findings, about these rooms; return it.

    All others follow from it, but for those about rooms that are in trouble beside it.
    """

    def look() -> Any:
        status, seen = asked(pair, "check", "--pause", "1s", *([] if REFUSED in codes else ["--suppress", REFUSED]))
        told = findings(seen)
        if not told or told[0]["code"] not in codes or (rooms is not None and set(told[0]["rooms"]) != rooms):
            return None
        assert status == 1
        return seen

    seen: dict[str, Any] = until(f"check begins with {' or '.join(codes)}", look, 120, 0.5)
    first, *others = findings(seen)
    others = [found for found in others if not found["rooms"] or set(found["rooms"]) - set(beside)]
    assert {found["follows"] for found in others} <= {first["code"]}, others
    found: dict[str, Any] = first
    return found


LOOKS = int(os.environ.get("PDCTL_TEST_PAIR_LOOKS", "10"))
"""How many looks a pair under load gets that is well."""


def stays_clean(pair: Pair, looks: int = LOOKS, *, prefill_dp: int | None = None) -> None:
    """`check` finds nothing in many looks while requests are served."""
    for _ in range(looks):
        answers = pair.begin(2, limit_s=180, prefill_dp=prefill_dp)
        is_clean(pair)
        assert all(answer().tokens for answer in answers)


def compared(pair: Pair, kind: str, role: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Return the exit code of `diff-queues`, what it says of the one group of a kind on a side, and its findings."""
    status, seen = asked(pair, "diff-queues")
    [report] = [group for group in seen["groups"] if (group["kind"], group["role"]) == (kind, role)]
    return status, report, findings(seen)


def hang_runbook_names(pair: Pair, label: str, kind: str) -> None:
    """The first two commands of the runbook for hangs say that this stopped rank keeps the others of its group waiting."""
    role, advice = label.partition(" ")[0], f"kill -CONT {pair.rank(label).identity.pid} "

    def late() -> bool:
        status, report, found = compared(pair, kind, role)
        if [one["ranks"] for one in found if one["code"] == "PD110"] != [[label]]:
            return False
        assert (status, report["verdict"]) == (1, "WAITING")
        assert found[0]["code"] == "PD114"
        assert advice in found[0]["next_step"]
        return True

    until("diff-queues names the rank", late, 120, 0.5)
    status, seen = asked(pair, "stacks")
    assert status == 1
    assert advice in findings(seen)[0]["next_step"]


@contextlib.contextmanager
def long_forward(pair: Pair, role: str) -> Iterator[None]:
    """Forwards of ``role`` do not end as long as the block lasts."""
    file = Path(pair.env.environ[SLOW])
    file.write_text(role)
    try:
        yield
    finally:
        file.unlink()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process is stopped as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def turned_s(pair: Pair, label: str) -> tuple[float, str]:
    """Return how long ago a rank's last turn began, and where its main thread is."""
    _, seen = asked(pair, "ranks")
    [row] = [row for row in seen["ranks"] if row["rank"] == label]
    return row["tick_age_s"] or 0.0, row["where"]
