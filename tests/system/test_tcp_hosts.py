"""Three network namespaces as hosts: found by their job's store, asked over CURVE, one of them cut off while it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.curve import Keyring, notes
from tests.support.following import followed
from tests.support.hosts import Hosts, why_not
from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT, TinyRanks, patient

pytestmark = pytest.mark.system
PORT = 29_511
STORE = ("--store", f"{Hosts.address(1)}:{PORT}")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Hosts(3) as made:
        yield made


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, alice="observe", bob="inject")


@pytest.fixture
def ranks(hosts: Hosts, ring: Keyring, tmp_path: Path) -> Iterator[list[TinyRanks]]:
    """One rank of a real group on each host, with directories of its own; the first host has the job's store."""
    with ExitStack() as stack:
        made = [stack.enter_context(TinyRanks(tmp_path / f"host{n}", hosts.inside(n))) for n in (1, 2, 3)]
        args = ("--size", 3, "--port", PORT, "--host", Hosts.address(1), "--then", "loop")
        env = {"PDCTL_LISTEN": "tcp://eth0:7311-7318", "PDCTL_ARM": "1", "GLOO_SOCKET_IFNAME": "eth0", **ring.env}
        children = [one.begin("--rank", n, *args, **env) for n, one in enumerate(made)]
        for one, child in zip(made, children, strict=True):
            one.ready(child)
        yield made


@pytest.fixture
def away(hosts: Hosts, ranks: list[TinyRanks], ring: Keyring, tmp_path: Path) -> TinyRanks:
    """Whoever asks: on a host of its own, where no rank has ever been."""
    client = TinyRanks(tmp_path / "client", hosts.inside(0))
    del client.env["PDCTL_RUN_DIR"], client.env["PDCTL_RECORD_DIR"]
    client.env |= {**ring.env, "PDCTL_KEY": "alice"}

    def published() -> bool:
        done = client.pdctl(*STORE, "ranks", "-o", "json", *patient())
        return done.returncode == 0 and len(json.loads(done.stdout)["ranks"]) == 3

    until("all ranks in the store", published)
    return client


def shown(done: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    assert done.returncode == code, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_hosts_are_found_by_the_store_asked_over_curve_and_missed_when_cut_off(
    hosts: Hosts, ranks: list[TinyRanks], away: TinyRanks, ring: Keyring, tmp_path: Path
) -> None:
    rows = shown(away.pdctl(*STORE, "ranks", "-o", "json", *patient()), 0)["ranks"]
    assert [row["endpoint"] for row in rows] == [f"tcp://{Hosts.address(n)}:7311" for n in (1, 2, 3)]
    seen = shown(away.pdctl(*STORE, "diff-queues", "-o", "json", *patient()), 0)
    assert [(group["verdict"], len(group["ranks"])) for group in seen["groups"]] == [("AGREE", 3)]

    # Who is not let in, and who may only look.
    ring.stranger("eve")
    limits = ["--timeout", f"{patience(20):.0f}", "--rank-timeout", f"{patience(1):.1f}"]  # nobody answers her
    eve = away.pdctl("--key", "eve", *STORE, "ranks", "-o", "json", *limits)
    assert {row["state"] for row in shown(eve, 4)["ranks"]} == {"silent"}
    for _ in range(2):
        refused = away.pdctl(*STORE, "heal", "--all", *patient())
        assert refused.returncode == 6, refused
        assert "role observe" in refused.stderr
    assert away.pdctl("--key", "bob", *STORE, "heal", "--all", *patient()).returncode == 0
    for one in ranks:
        assert sum("role observe" in note for note in notes(one, pid_of(one))) == 1
        assert sum("refused a client" in note for note in notes(one, pid_of(one))) == 1

    # The third host's cable is pulled while its rank is being followed.
    file = tmp_path / "cut.pdtrace"
    wait_s = patience(1)
    limits = ["--timeout", f"{patience(10):.0f}", "--rank-timeout", f"{wait_s:.1f}"]
    command = [*STORE, "record", str(file), "--for", f"{3 * wait_s:.0f}s", "-o", "json", *limits]
    following = subprocess.Popen(
        [*away.prefix, sys.executable, "-m", "pdctl.cli", *command],
        cwd=ROOT, env=away.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    followed(following)
    hosts.pull(3)
    out, err = following.communicate()
    assert following.returncode == 3, (out, err)
    kept = {rank["identity"]["tp"]: rank for rank in json.loads(out)["trace"]["ranks"]}
    assert kept[2]["kept"] != "whole"
    assert kept[2]["reason"]

    # The other two wait in a round for it: that they hang may be found by now; that one was not seen must be said.
    limits = ["--timeout", f"{patience(60):.0f}", "--rank-timeout", f"{wait_s:.1f}"]
    partial = away.pdctl(*STORE, "ranks", "-o", "json", *limits)
    assert partial.returncode in (1, 3), partial
    rows = json.loads(partial.stdout)["ranks"]
    assert [row["state"] for row in rows[:2]] == ["live", "live"]
    assert rows[2]["state"] in ("silent", "dead")
    assert "not reachable" in rows[2]["reason"]
    assert "heartbeat" in rows[2]["reason"]
    partial = away.pdctl(*STORE, "diff-queues", "-o", "json", *limits)
    assert partial.returncode in (1, 3), partial
    assert any("not reachable" in problem for problem in json.loads(partial.stdout)["problems"])
    hosts.plug(3)
    until("an answer of every rank", lambda: away.pdctl(*STORE, "ranks", *patient()).returncode == 0)


def pid_of(ranks: TinyRanks) -> int:
    """Return the pid of a host's one rank: its own, not that of what started it there."""
    [path] = ranks.run_dir.glob("*.json")
    return int(path.name.partition("-")[0])
