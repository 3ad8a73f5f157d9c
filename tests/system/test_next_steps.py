"""Each finding's next step on a lab in the state that it is for.

The finding is in ``check``, its next step says what it has to, the commands that it names run as they are printed and show
what it promises, and once the rest of it is done, the finding is gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from pdctl.report.findings import catalogue
from tests.support import advice
from tests.support.advice import sent
from tests.support.cases import Cases
from tests.support.labs import Labs
from tests.support.patience import until
from tests.system.test_situations import WAYS

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1800, method="signal")]


@dataclass(frozen=True)
class Step:
    """A finding of a state. says: words of its next step. shows: words of what the commands print that it names."""

    code: str
    says: str
    shows: tuple[str, ...] = ()
    rid: str = ""


@dataclass(frozen=True)
class State:
    """How a lab comes into a state, what is found in it, and what a reader then does.

    make, then: commands without ``pdctl``. env: of the lab.
    """

    make: tuple[str, ...]
    steps: tuple[Step, ...]
    then: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


BOTH = "--rank decode:tp0 --rank decode:tp1 --allow-ranks 2"
QUERY = "lab up --prefill dp=2 --force-query prefill,decode"


STATES = {
    "metadata comes late": State(
        (
            "lab up --without gate",
            "inject --delay-metadata 3s --rank decode:tp1 --for 10m --detach",
            sent(71),
        ),
        (
            Step("PD101", "Restart this decode server now"),
            Step("PD161", "pdctl diff-queues names the round", ("DIVERGED at round", "room 71 is on tp1 only")),
        ),
        ("lab restart decode",),
    ),
    "the gate holds": State(
        ("lab up", f"inject --drop-metadata --room 72 --for 10m {BOTH} --detach", sent(72)),
        (
            Step("PD102", "If it lasts for 30 s, it is PD148"),
            Step("PD148", "Abort the request", ("arrived in decode.prealloc",)),
        ),
        ("lab abort r72",),
    ),
    "a request is lost on one rank": State(
        ("lab up", "lab load -n 4", sent(73, "--to decode --lost-on 0")),
        (
            Step("PD103", "Restart this server", ("room 73", "tp1")),
            Step("PD160", "pdctl diff-queues names the round", ("DIVERGED at round",)),
        ),
        ("lab restart decode",),
    ),
    "one of two requests is lost on one rank": State(
        ("lab up", "lab load -n 4", sent(74, "--to decode"), sent(75, "--to decode --lost-on 1")),
        (Step("PD104", "Restart this server", ("room 75",)),),
        ("lab restart decode",),
    ),
    "a rank asks before the registration": State(
        (
            f"{QUERY} --without receiver",
            "inject --hide-registration --rank decode:tp0 --room 6 --for 10m --detach",
            sent(6, "--prefill-dp 0"),
        ),
        (Step("PD106", "Restart this decode server"),),
        ("heal --all", "lab restart decode"),
    ),
    "a slot is stale": State(
        (
            "lab up --without zero-on-free --slots 1",
            "lab load -n 1 --room 100",
            "inject --delay-metadata 5s --room 102 --rank decode:tp1 --for 10m --detach",
            sent(102),
        ),
        (
            Step("PD131", "Find why the row came late", ("DIVERGED at round", "room 100")),
            Step("PD107", "Restart this decode server now"),
        ),
    ),
    "a server's ranks keep no recording": State(
        ("lab up", sent(76, "--to decode --lost-on 0")),
        (Step("PD111", "Switch recording on", ("PDCTL_RECORD",)),),
        env=(("PDCTL_RECORD", "off"),),
    ),
    "a room is routed against the formula": State(
        ("lab up --prefill dp=2 --without dp-registration", sent(7, "--prefill-dp 0")),
        (Step("PD120", "Abort the room"),),
        ("lab abort r7",),
    ),
    "the engine refuses a room": State(
        (
            "lab up --prefill dp=2",
            sent(9, "--to decode"),
            "lab load -n 1 --seconds 5 --room 9 --to prefill --prefill-dp 0",
        ),
        (Step("PD121", "Abort the room on decode"),),
        ("lab abort r9",),
    ),
    "the bootstrap server has forgotten a room": State(
        (
            "lab up --prefill dp=2 --load-balance total_requests",
            "lab load -n 8",
            sent(11, "--to prefill --prefill-dp 0"),
            "lab restart bootstrap",
            sent(11, "--to decode"),
        ),
        (Step("PD122", "Failed to register prefill dp_rank"),),
        ("lab abort r11",),
    ),
    "the query is forced on one side": State(
        ("lab up --prefill dp=2 --force-query decode", sent(6, "--prefill-dp 0")),
        (Step("PD123", "on neither"),),
    ),
    "the query is forced, and rooms are not registered": State(
        (f"{QUERY} --without register-every-room", sent(6, "--prefill-dp 0")),
        (Step("PD124", "Unset SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK on both sides"),),
    ),
    "a room is registered under another rank": State(
        (
            "lab up --prefill dp=2 --load-balance total_requests",
            "inject --misroute 1 --rank prefill:dp0 --room 8 --for 10m --detach",
            sent(8, "--prefill-dp 0"),
        ),
        (Step("PD125", "If a fault (--misroute) is in place, heal it"),),
        ("heal --all", "lab abort r8"),
    ),
    "a registration runs out": State(
        (f"{QUERY} --entry-cleanup 60s", sent(7, "--to prefill --prefill-dp 0")),
        (Step("PD126", "Find out why decode has not asked yet"),),
        ("lab abort r7",),
    ),
    "a room is used twice": State(
        (
            "lab up",
            sent(402, "--to decode"),
            f"inject --duplicate-room 402 --room 406 --for 10m {BOTH} --detach",
            sent(406, "--to decode"),
        ),
        (Step("PD127", "Look at the router"),),
    ),
    "a foreign room is in a slot": State(
        (
            "lab up",
            "lab load -n 2",
            "inject --corrupt-room --rank decode:tp1 --room 55 --for 10m --detach",
            sent(55),
        ),
        (Step("PD133", "See who knows the room"),),
    ),
    "metadata does not come to one rank": State(
        ("lab up", "inject --drop-metadata --rank decode:tp1 --room 77 --for 10m --detach", sent(77)),
        (Step("PD141", "Abort the request", ("prefill tp0", "Success")),),
        ("lab abort r77",),
    ),
    "a status does not come": State(
        ("lab up", "inject --drop-status --rank decode:tp1 --room 78 --for 10m --detach", sent(78)),
        (Step("PD142", "look for what loses messages from prefill to decode"),),
        ("lab abort r78",),
    ),
    "a request leaves its room in a table": State(
        ("lab up --decode tp=1", "lab load -n 1 --room 79 --to decode --lost-on 0 --seconds 5"),
        (Step("PD153", "If the number grows fast"),),
        ("lab restart decode",),
    ),
    "a later stage keeps an orphan": State(
        (
            "lab up --prefill pp=2 --without orphan-drain",
            "lab load -n 1 --room 80 --to prefill --abort-after 0.5 --seconds 10",
        ),
        (Step("PD152", "Restart the prefill server"),),
        ("lab restart prefill",),
    ),
    "a stage fails a request that another has": State(
        (
            "lab up --prefill pp=2",
            "inject --abort --rank prefill:pp1 --hits 1 --for 10m --detach",
            sent(81, "--seed 1 --to prefill"),
            sent(81, "--seed 1 --to decode"),
        ),
        (Step("PD116", "Abort the request on both sides"),),
        ("lab abort r81",),
    ),
    "a decode rank is stopped": State(
        ("lab up", "lab load -n 0 -c 6 --seconds 600 &", "lab kill decode:tp1 --signal STOP"),
        (Step("PD112", "a stopped process (state T) needs SIGCONT", ("stopped",)),),
        ("lab kill decode:tp1 --signal CONT",),
    ),
}

NO_STATE = {
    **dict.fromkeys(("PD170", "PD171", "PD172", "PD173", "PD174"), "preflight finds it, and not check"),
    "PD105": "nothing in a lab orders one rank's queue differently; judged from built rounds",
    "PD108": "nothing in a lab lets ranks do different things with equal polls; judged from built rounds",
    "PD110": "a rank of a lab that is late for long enough stands, which is PD114; judged from built rounds",
    "PD117": "a thread of a rank has to end; test_service_threads has one",
    "PD118": "a lab's server has no processes but its ranks; judged from real processes that are called as the engine's are",
    "PD128": "a bootstrap server of other sizes has to stand at the address; test_verify_routing has one",
    "PD129": "the same",
    "PD130": "needs metadata on a GPU, written asynchronously",
    "PD132": "no fault gives a slot out twice; judged from built slots",
    "PD138": "a lab computes no KV checksums; judged from what recordings tell",
    "PD149": "story finds it in a router's log, and not check",
    "PD150": "a lab's load loses a request before it has a slot; test_dump loses one that has it",
    "PD151": "the same",
    "PD154": "watch finds it, and not check",
    "PD155": "a thread of prefill has to end; test_service_threads has one",
    "PD156": "a lab's scheduler takes whatever it has a place for; judged from built looks",
    "PD134": "a lab's settings are those of a whole side",
    "PD136": "a lab has one version",
}
"""Codes that no lab comes to, and why."""


def test_every_code_has_a_state_or_a_reason() -> None:
    made = {step.code for state in STATES.values() for step in state.steps}
    situations = {way.code for way in WAYS.values() if way.code}
    assert not (made | situations) & NO_STATE.keys()
    assert made | situations | NO_STATE.keys() == catalogue().keys()


def found(cases: Cases) -> dict[str, dict[str, Any]]:
    """Return what ``check`` finds, the first of each code."""
    done = cases.run("check -o json --rank-timeout 20s --timeout 120s")
    one_of: dict[str, dict[str, Any]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        one_of.setdefault(finding["code"], finding)
    return one_of


@pytest.mark.parametrize("name", STATES)
def test_the_next_step_helps(labs: Labs, name: str) -> None:
    state = STATES[name]
    labs.env |= dict(state.env)
    with Cases(labs) as cases:
        advice.do(cases, state.make)
        for step in state.steps:
            finding = until(step.code, lambda code=step.code: found(cases).get(code), every_s=1.0)  # type: ignore[misc]
            assert step.says in finding["next_step"]
            printed = " ".join(advice.run(labs, finding["next_step"], rid=step.rid))
            assert all(words in printed for words in step.shows), f"{finding['next_step']}\n{printed}"
        if state.then:
            advice.do(cases, state.then)
            codes = {step.code for step in state.steps}
            until(f"no {', '.join(codes)}", lambda: not codes & found(cases).keys(), every_s=1.0)
