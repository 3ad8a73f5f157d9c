"""Each situation of docs/lab.md, and each healthy twin, made from the page: what its reader finds, or that it is clean.

The reader begins with the first command of the README's first screen and runs what the next step on top names: three
commands in all, and the cause has been said. Then he does what it advises, and the finding is gone.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from tests.support import advice
from tests.support.cases import ROOT, Cases, situations
from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1800, method="signal")]


class Way(NamedTuple):
    """What the reader of a situation gets to see. code: the finding that stands first; "" where nothing is wrong.

    says: words of the first command's output, in their order. shows: words of what the commands print that the next step names.
    """

    code: str
    says: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()


_STOPPED = ("stopped (SIGSTOP)", "Next: kill -CONT", "nothing has to be aborted or restarted")
WAYS = {
    "Requests reach decode only": Way(
        "PD143",
        ("5 requests", "it never came to prefill", "Next: Look at the router"),
        ("it never came to prefill",),
    ),
    "A long forward on prefill": Way(""),
    "A prefill rank is killed": Way(
        "PD113",
        (
            "Server prefill has ended",
            "prefill dp0 pp0 tp1",
            "first",
            "8 rooms of decode wait for it",
            "Next: Start this server",
        ),
        ("kept.pdtrace", "arrived in decode.prealloc"),
    ),
    "A decode rank is killed": Way(
        "PD113",
        ("Server decode has ended", "decode dp0 pp0 tp0", "first", "of prefill wait", "Next: Start this server"),
        ("kept.pdtrace", "arrived in prefill.bootstrap"),
    ),
    "A scheduler dies of an exception": Way(
        "PD113",
        ("Server prefill has ended", "scheduler ended: RuntimeError", "of decode wait", "Next: Start this server"),
        ("kept.pdtrace", "arrived in decode.prealloc"),
    ),
    "Prefill ends in the middle of a transfer": Way(
        "PD113",
        ("Server prefill has ended", "1 room of decode waits for it", "Next: Start this server"),
        ("kept.pdtrace", "arrived in decode.prealloc"),
    ),
    "A server is replaced behind its address": Way(
        "PD144",
        ("prefill@lab:lab was started", "of the process before", "2 requests wait", "Next: Restart decode@lab:lab"),
    ),
    "The bootstrap server is dead": Way(
        "PD145",
        ("refuses connections", "Next: prefill@lab:lab runs without its bootstrap server: restart it as a whole"),
    ),
    "A bootstrap address that nobody listens on": Way(
        "PD145", ("127.0.0.1:9 refuses connections", "Next: Look at the bootstrap host and port that the router sends")
    ),
    "One request id, two rooms": Way(
        "PD147", ("rid same-id has 2 rooms", "Next: Look at who sends"), ("88001", "88002")
    ),
    "The running batch is full of requests without a client": Way(
        "PD146",
        (
            "is full: 4 of 4 places",
            "Nobody waits for 4",
            "rid gone-0",
            "Next: Abort the requests that nobody waits for",
        ),
    ),
    "A pipeline stage stands": Way("PD114", ("prefill dp0 pp1", *_STOPPED)),
    "A decode rank stands": Way("PD114", ("decode dp0 tp1", *_STOPPED)),
    "A rank stands, and dp attention makes its server wait": Way("PD114", ("decode dp1", *_STOPPED)),
    "Clients abort, and decode is full": Way("PD140", ("is full", "first in line and needs")),
    "Prefill times out because decode is full": Way("PD140", ("is full", "first in line and needs")),
    "Two prefill servers, one bootstrap server": Way(
        "PD137",
        ("prefill@lab:lab and prefill1@lab:lab share the bootstrap server", "Next: Give each prefill server its own"),
    ),
    "The sides have different settings": Way(
        "PD135", ("kv_cache_dtype", "Next: Start both servers with the same values")
    ),
    "An abort reaches one pipeline stage only": Way(
        "PD115", ("pp0", "took it on in round", "failed it in round", "Next: Restart this server"), ("kept.pdtrace",)
    ),
    "The metadata of one decode stage is late": Way(
        "PD115", ("pp0", "ended it well in round", "kept it in round", "Next: Restart this server"), ("kept.pdtrace",)
    ),
}
"""PD140 alone is information: the exit code is 0."""

KEEPS_ON = "kill -CONT"
MENDED = {
    "A prefill rank is killed": "lab restart prefill",
    "A decode rank is killed": "lab restart decode",
    "A scheduler dies of an exception": "lab restart prefill",
    "Prefill ends in the middle of a transfer": "lab restart prefill",
    "A server is replaced behind its address": "lab restart decode",
    "The bootstrap server is dead": "lab restart prefill",
    "One request id, two rooms": "lab abort same-id",
    "The running batch is full of requests without a client": "lab abort gone-0 gone-1 gone-2 gone-3",
    "A pipeline stage stands": KEEPS_ON,
    "A decode rank stands": KEEPS_ON,
    "A rank stands, and dp attention makes its server wait": KEEPS_ON,
    "An abort reaches one pipeline stage only": "lab restart prefill",
    "The metadata of one decode stage is late": "lab restart decode",
}
"""What the advice comes to on a lab, where it is not about a router or a setting."""

LOOKS = 5
MOST_COMMANDS = 3
PATIENT = "--rank-timeout 30s --timeout 120s"


def box() -> list[str]:
    """Return the commands on the first screen of the README, without ``pdctl``."""
    quoted = (ROOT / "README.md").read_text().partition("3 a.m.")[2].partition("```")[2].partition("```")[0]
    return [line.partition("#")[0].strip() for line in re.findall(r"^> pdctl (.*)$", quoted, re.MULTILINE)]


def check(cases: Cases, patience: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of ``check``, and its findings that follow from no other, in their order."""
    done = cases.run(f"check -o json {patience}")
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, [row for row in document["findings"] if not row["follows"]]


def test_the_page_has_them() -> None:
    assert WAYS.keys() == situations().keys()
    assert MENDED.keys() <= WAYS.keys()
    assert box()[0] == "check"


@pytest.mark.parametrize("name", WAYS)
def test_the_cause_is_found_and_the_advice_helps(labs: Labs, name: str) -> None:
    way = WAYS[name]
    with Cases(labs) as cases:
        cases.make(name)
        if not way.code:
            for _ in range(LOOKS):
                assert check(cases, PATIENT) == (0, [])
            return

        def first() -> dict[str, Any] | None:
            _, found = check(cases)
            return found[0] if found and found[0]["code"] == way.code else None

        next_step = until(f"{way.code} first", first, limit_s=120.0, every_s=2.0)["next_step"]
        until(
            "the cause in the first command's output",
            lambda: in_order(way.says, cases.run(box()[0]).stdout),
            every_s=2.0,
        )
        shown = advice.run(labs, next_step, rid="same-id")
        assert 1 + len(shown) <= MOST_COMMANDS
        assert all(words in " ".join(shown) for words in way.shows), f"{next_step}\n{shown}"
        if name in MENDED:
            if MENDED[name] == KEEPS_ON:
                advice.let_go_on(next_step)
            else:
                cases.run(MENDED[name], code=0)
            until(f"no {way.code}", lambda: way.code not in codes(check(cases)[1]), limit_s=120.0, every_s=2.0)


def codes(found: list[dict[str, Any]]) -> list[str]:
    return [one["code"] for one in found if one["level"] != "info"]


def in_order(says: tuple[str, ...], printed: str) -> bool:
    """Return whether these words are printed in this order, whatever the lines."""
    return re.search(".*?".join(map(re.escape, says)), " ".join(printed.split())) is not None


@pytest.mark.parametrize("name", [name for name, blocks in situations().items() if len(blocks) > 1])
def test_nothing_is_found_where_nothing_is_wrong(labs: Labs, name: str) -> None:
    with Cases(labs) as cases:
        cases.make(name, twin=True)
        for _ in range(LOOKS):
            code, found = check(cases, PATIENT)
            assert (code, codes(found)) == (0, []), cases.run(f"check {PATIENT}").stdout
