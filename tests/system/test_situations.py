"""Each situation of docs/lab.md, and each healthy twin, made from the page: what ``check`` finds first, or that it is clean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cases import Cases, situations
from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1800, method="signal")]

FIRST = {
    "Requests reach decode only": "PD143",
    "A long forward on prefill": "",
    "A prefill rank is killed": "PD113",
    "A decode rank is killed": "PD113",
    "A scheduler dies of an exception": "PD113",
    "Prefill ends in the middle of a transfer": "PD113",
    "A server is replaced behind its address": "PD144",
    "The bootstrap server is dead": "PD145",
    "A bootstrap address that nobody listens on": "PD145",
    "One request id, two rooms": "PD147",
    "The running batch is full of requests without a client": "PD146",
    "A pipeline stage stands": "PD114",
    "A decode rank stands": "PD114",
    "A rank stands, and dp attention makes its server wait": "PD114",
    "Clients abort, and decode is full": "PD140",
    "Prefill times out because decode is full": "PD140",
    "Two prefill servers, one bootstrap server": "PD137",
    "The sides have different settings": "PD135",
    "An abort reaches one pipeline stage only": "PD115",
}
"""The finding that stands first; "" where nothing is wrong. PD140 alone is information: the exit code is 0."""


LOOKS = 5


def check(cases: Cases) -> tuple[int, list[str]]:
    """Return the exit code of ``check``, and the codes of its findings that follow from no other, in their order."""
    done = cases.run("check -o json")
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, [row["code"] for row in document["findings"] if not row["follows"]]


def test_the_page_has_them() -> None:
    assert FIRST.keys() == situations().keys()


@pytest.mark.parametrize("name", FIRST)
def test_the_first_finding_is_the_cause(labs: Labs, name: str) -> None:
    with Cases(labs) as cases:
        cases.make(name)
        if FIRST[name]:
            until(f"{FIRST[name]} first", lambda: check(cases)[1][:1] == [FIRST[name]], limit_s=120.0, every_s=2.0)
        else:
            for _ in range(LOOKS):
                assert check(cases) == (0, [])


@pytest.mark.parametrize("name", [name for name, blocks in situations().items() if len(blocks) > 1])
def test_nothing_is_found_where_nothing_is_wrong(labs: Labs, name: str) -> None:
    with Cases(labs) as cases:
        cases.make(name, twin=True)
        for _ in range(LOOKS):
            code, _ = check(cases)
            assert code == 0
