"""Every branch of every runbook: a lab in the state that the branch is for, and the words that lead a reader to it.

A branch is a point of a list in a runbook. Those whose output the runbook shows are tested with it (``test_runbooks``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import advice
from tests.support.advice import sent
from tests.support.cases import Cases, situations
from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1800, method="signal")]

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
SHOWN = "its output is shown"


@dataclass(frozen=True)
class Branch:
    """runbook: its name without ``.md``. point: how the point of the list begins.

    command: of this runbook, without ``pdctl``, with its exit code and words of what it prints, in their order.
    """

    runbook: str
    point: str
    command: str
    code: int
    words: tuple[str, ...]


HANG, DIED, WAIT = "requests-hang-on-decode", "prefill-or-decode-died", "requests-wait-though-groups-agree"
GLOO, TIMES_OUT, GAUGE = "decode-died-with-a-gloo-error", "bootstrap-times-out", "queue-gauge-never-returns-to-zero"
ROUTING, UPGRADE = "routing-mismatch", "before-and-after-an-upgrade"
STUCK = "stuck --stuck-after 2s"

STATES: dict[str | tuple[str, ...], tuple[Branch, ...]] = {
    ("lab up", "inject --drop-metadata --rank decode:tp1 --room 71 --for 10m --detach", sent(71)): (
        Branch(HANG, "**HELD**", "diff-queues", 0, ("HELD", "71")),
        Branch(HANG, "**PD141, nothing ends it**", STUCK, 1, ("PD141", "waits for its metadata", "nothing ends it")),
    ),
    "A decode rank stands": (
        Branch(HANG, "**WAITING**", "diff-queues", 1, ("PD114", "Next: kill -CONT", "WAITING")),
        Branch(WAIT, "Another verdict than AGREE", "diff-queues", 1, ("WAITING",)),
        Branch(DIED, "PD114 instead", "ranks", 1, ("PD114", "process is stopped", "Next: kill -CONT")),
    ),
    "A pipeline stage stands": (
        Branch(HANG, "**AGREE**", "stacks", 1, ("PD114", "prefill dp0 pp1")),
        Branch(HANG, "**PD114**", STUCK, 1, ("PD114", "has not turned")),
    ),
    "A decode rank is killed": (
        Branch(HANG, "**WAITING**", "diff-queues", 1, ("PD113", "UNKNOWN")),
        Branch(GLOO, "**UNKNOWN**", "diff-queues --all", 1, ("UNKNOWN", "recorded rounds agree")),
    ),
    ("lab up", "lab load -n 4", "lab kill prefill"): (
        Branch(DIED, "A *warning*, not an error", "ranks", 1, ("PD113", "No request waits for it", "being restarted")),
    ),
    "A scheduler dies of an exception": (
        Branch(DIED, "**scheduler ended", "ranks", 1, ("PD113", "scheduler ended: RuntimeError")),
    ),
    ("lab up", "inject --drop-status --rank decode:tp1 --room 72 --for 10m --detach", sent(72)): (
        Branch(HANG, "**PD142**", STUCK, 1, ("PD142", "look for what loses messages")),
    ),
    (
        "lab up --kv-tokens 400 --step decode=500ms",
        "lab load -n 40 -c 6 --prompt-tokens 100 --new-tokens 90 --seconds 600 &",
    ): (
        Branch(HANG, "**PD140, is full**", STUCK, 0, ("is full",)),
        Branch(TIMES_OUT, "decode has it in **prealloc**", STUCK, 0, ("prealloc", "waits for space", "PD140")),
    ),
    ("lab up --prefill dp=2 --force-query decode", sent(6, "--prefill-dp 0")): (
        Branch(TIMES_OUT, "decode has it in **pending**", STUCK, 1, ("room 6", "pending")),
        Branch(ROUTING, "the variable on **one side only**", "verify-routing", 1, ("PD123",)),
    ),
    ("lab up --prefill dp=2 --force-query prefill,decode --without register-every-room", sent(6, "--prefill-dp 0")): (
        Branch(ROUTING, "on both sides with SGLang 0.5.11 to 0.5.18", "verify-routing", 1, ("PD124", "Unset")),
    ),
    ("lab up --decode tp=1", "lab load -n 1 --room 73 --to decode --lost-on 0 --seconds 5"): (
        Branch(GAUGE, "a **slot** or **table**", "dump leaks --for 5s", 0, ("PD153", "keeps room 73")),
    ),
    "The bootstrap server is dead": (
        Branch(WAIT, "*runs without its bootstrap server*", "check", 1, ("PD145", "runs without its bootstrap server")),
    ),
    ("lab up --without gate",): (
        Branch(UPGRADE, "The counter-proof", "drill run metadata-gate --control --load lab", 1, ("BROKEN",)),
    ),
}
"""A situation of docs/lab.md by its name, or commands without ``pdctl``, with the branches that are for this state."""

ELSEWHERE = {
    (TIMES_OUT, "**it never came to decode**"): SHOWN,
    (GLOO, "**DIVERGED**"): SHOWN,
    (DIED, "**killed by SIGKILL**"): SHOWN,
    (DIED, "**in good order**"): "no process of a lab ends so with requests in it; judged from built endings",
    (GAUGE, "**orphan**"): SHOWN,
    (HANG, "**DIVERGED**"): SHOWN,
    (HANG, "**KEPT**"): "test_loops_stand.py has a decode stage that is not told of a failed transfer",
    (WAIT, "AGREE: "): SHOWN,
    (WAIT, "*no prefill server here has* this address"): SHOWN,
    (ROUTING, "**dispatched to one, implied another**"): SHOWN,
    (UPGRADE, "**HOLDS**"): SHOWN,
}


def test_every_branch_has_a_state_or_is_shown() -> None:
    points = {
        (path.stem, point)
        for path in RUNBOOKS.glob("*.md")
        for point in re.findall(r"^- (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    known = {(one.runbook, one.point) for those in STATES.values() for one in those} | ELSEWHERE.keys()
    led_to = {
        (name, point) for name, point in points for of, begins in known if of == name and point.startswith(begins)
    }
    assert led_to == points
    assert all(any(of == name and point.startswith(begins) for name, point in points) for of, begins in known)
    assert {state for state in STATES if isinstance(state, str)} <= situations().keys()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state if isinstance(state, str) else state[0])
def test_a_state_leads_to_its_branches(labs: Labs, state: str | tuple[str, ...]) -> None:
    with Cases(labs) as cases:
        if isinstance(state, str):
            cases.make(state)
        else:
            advice.do(cases, state)
        for branch in STATES[state]:

            def led(branch: Branch = branch) -> bool:
                done = cases.run(
                    branch.command if branch.command.startswith("drill") else f"{branch.command} --timeout 120s"
                )
                said = " ".join(done.stdout.split())
                return done.returncode == branch.code and bool(
                    re.search(".*?".join(map(re.escape, branch.words)), said)
                )

            until(f"{branch.words} of {branch.command}", led, every_s=1.0)
