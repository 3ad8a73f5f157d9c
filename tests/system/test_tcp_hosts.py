"""Three network namespaces as hosts, asked over CURVE from far away, and one of them cut off while it is asked.

The link in between takes 20 ms for each frame and loses one in a hundred.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pdctl.recording import format as f
from tests.support.curve import Keyring
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
    with Hosts(3, delay_ms=20, loss=0.01) as made:
        yield made


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, alice="observe")


@pytest.fixture
def ranks(hosts: Hosts, ring: Keyring, tmp_path: Path) -> Iterator[list[TinyRanks]]:
    """One rank of a real group on each host, with directories of its own; the first host has the job's store."""
    with ExitStack() as stack:
        made = [stack.enter_context(TinyRanks(tmp_path / f"host{n}", hosts.inside(n))) for n in (1, 2, 3)]
        args = ("--size", 3, "--port", PORT, "--host", Hosts.address(1), "--then", "loop")
        env = {"PDCTL_LISTEN": "tcp://eth0:7311-7318", "GLOO_SOCKET_IFNAME": "eth0", **ring.env}
        env["PDCTL_RECORD_SIZE"] = str(f.MIN_SIZE)  # `record` takes all of it over the slow link
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
    return client


def shown(done: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    assert done.returncode == code, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_hosts_are_found_by_the_store_asked_over_curve_and_missed_when_cut_off(
    hosts: Hosts, away: TinyRanks, tmp_path: Path
) -> None:
    def published() -> list[dict[str, Any]]:
        done = away.pdctl(*STORE, "ranks", "-o", "json", *patient())
        rows: list[dict[str, Any]] = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
        return rows if len(rows) == 3 else []

    rows = until("all ranks in the store", published)
    assert [row["endpoint"] for row in rows] == [f"tcp://{Hosts.address(n)}:7311" for n in (1, 2, 3)]
    seen = shown(away.pdctl(*STORE, "diff-queues", "-o", "json", *patient()), 0)
    assert [(group["verdict"], len(group["ranks"])) for group in seen["groups"]] == [("AGREE", 3)]

    # The third host's cable is pulled while its rank is being followed.
    file = tmp_path / "cut.pdtrace"
    wait_s = patience(1)
    # A frame that the link loses is sent again after a second or more, also one that opens the connection to the store.
    limits = ["--timeout", f"{patience(60):.0f}", "--rank-timeout", f"{patience(5):.1f}"]
    following = begun(away, "record", str(file), "--for", "1h", "-o", "json", *limits)
    followed(following)
    hosts.pull(3)
    following.terminate()
    out, err = following.communicate()
    assert following.returncode == 3, (out, err)
    kept = {rank["identity"]["tp"]: rank for rank in json.loads(out)["trace"]["ranks"]}
    assert kept[2]["kept"] != "whole"
    assert kept[2]["reason"]

    # The other two wait in a round for it: that they hang may be found by now; that one was not seen must be said.
    limits = ["--timeout", f"{patience(60):.0f}", "--rank-timeout", f"{wait_s:.1f}"]
    both = [begun(away, name, "-o", "json", *limits) for name in ("ranks", "diff-queues")]
    listed, compared = [(json.loads(one.communicate()[0]), one.returncode) for one in both]
    assert {listed[1], compared[1]} <= {1, 3}, (listed, compared)
    rows = listed[0]["ranks"]
    assert [row["state"] for row in rows[:2]] == ["live", "live"]
    assert rows[2]["state"] in ("silent", "dead")
    assert "not reachable" in rows[2]["reason"]
    assert "heartbeat" in rows[2]["reason"]
    said = [problem for problem in compared[0]["problems"] if "not reachable" in problem]
    assert len(said) == 1, compared[0]["problems"]
    assert "tp2" in said[0]
    hosts.plug(3)
    until("an answer of every rank", lambda: away.pdctl(*STORE, "ranks", *patient()).returncode == 0)


def begun(away: TinyRanks, *args: str) -> subprocess.Popen[str]:
    """Start pdctl on the host far away and return at once."""
    return subprocess.Popen(
        [*away.prefix, sys.executable, "-m", "pdctl.cli", *STORE, *args],
        cwd=ROOT, env=away.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
