"""Two operators on one cluster: each sees the other's fault, limits count for both, and healing one leaves the other."""

from __future__ import annotations

import json

import pytest

from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def faults(labs: Labs) -> list[dict]:
    rows: list[dict] = json.loads(labs.cli("faults", "-o", "json").stdout)["faults"]
    return rows


def inject(labs: Labs, who: str, *args: str, code: int = 0):
    labs.env["SUDO_USER"] = who
    return labs.cli("inject", "--for", "10m", *args, code=code)


def test_two_operators_on_one_cluster():
    with Labs() as labs:
        labs.env["XDG_STATE_HOME"] = str(labs.folder / "state")
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        on_tp0 = ("--rank", "decode:tp0", "--skew-poll", "1ms")
        on_tp1 = ("--rank", "decode:tp1", "--delay-metadata", "1s")

        ann = inject(labs, "ann", *on_tp0, "--share", "50%", "--detach").stdout.strip()
        refused = inject(labs, "bob", *on_tp1, "--dry-run", code=5)
        for said in (ann, "ann@", "1 allowed in all", "--allow-ranks 2"):
            assert said in refused.stderr
        assert [row["fault"] for row in faults(labs)] == [ann], "a refusal places nothing"

        dry = inject(labs, "bob", *on_tp1, "--room", "7", "--allow-ranks", "2", "--dry-run", "-o", "json")
        [other] = json.loads(dry.stdout)["others"]
        assert (other["fault"], other["owner"].partition("@")[0], other["target"]) == (ann, "ann", "decode dp0 pp0 tp0")
        assert f"also in place: {ann} of ann@" in dry.stderr

        bob = inject(labs, "bob", *on_tp1, "--room", "7", "--allow-ranks", "2", "--detach").stdout.strip()
        assert {row["fault"]: row["owner"].partition("@")[0] for row in faults(labs)} == {ann: "ann", bob: "bob"}
        twice = inject(labs, "eve", "--rank", "decode:tp0", "--flip-poll", "Failed", "--allow-ranks", "9", code=5)
        assert f"holds fault {ann} of ann@" in twice.stderr, "one fault a rank, however wide"

        healed = labs.cli("heal", bob)
        assert healed.stdout.startswith(f"ended: {bob} of bob@")
        assert f"in place, and not meant: {ann} of ann@" in healed.stderr
        assert [row["fault"] for row in faults(labs)] == [ann]

        bob = inject(labs, "bob", *on_tp1, "--rid", "r-1", "--allow-ranks", "2", code=3)
        assert "no rank has a request r-1" in bob.stderr
        bob = inject(labs, "bob", *on_tp1, "--allow-ranks", "2", "--detach").stdout.strip()
        healed = labs.cli("heal", "--all", "-o", "json")
        ended = {
            fault: owner.partition("@")[0]
            for rank in json.loads(healed.stdout)["ranks"]
            for fault, owner in zip(rank["ended"], rank["owners"], strict=True)
        }
        assert ended == {ann: "ann", bob: "bob"}
        until("the end of all faults", lambda: not faults(labs))
        assert lab.load(requests=3).good
