"""``pdctl lab up --listen`` says where ranks listen, and what to do where they do not. ``pdctl keys list`` says who may ask."""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.curve import Keyring
from tests.support.labs import Labs
from tests.support.tiny_ranks import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(900, method="signal")]


@pytest.fixture
def labs(labs: Labs, tmp_path: Path) -> Labs:
    labs.env["PDCTL_KEYS"] = str(tmp_path / "keys")
    return labs


def test_a_lab_without_keys_runs_but_says_that_nobody_listens(labs: Labs) -> None:
    done = labs.cli("lab", "up", "--listen", "tcp://127.0.0.1", code=3)
    assert "no rank listens: there is no" in done.stderr
    assert "pdctl keys new server" in done.stderr
    assert "pdctl lab down --name lab" in done.stderr
    again = labs.cli("lab", "status", "-o", "json", code=3)
    ranks = [row for row in json.loads(again.stdout)["processes"] if row["process"].startswith(("prefill", "decode"))]
    assert [(row["state"], row["tcp"]) for row in ranks] == [("ready", "")] * 3
    assert all("server.key" in row["tcp_off"] for row in ranks)
    labs.cli("lab", "load", "-n", 2, code=0)  # it is a whole lab
    labs.cli("lab", "down")


def test_a_port_that_is_taken_is_said(labs: Labs, tmp_path: Path) -> None:
    labs.env["COLUMNS"] = "200"  # an endpoint stands on one line, however long a pid is
    Keyring(tmp_path, alice="observe")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = labs.cli("lab", "up", "--listen", f"tcp://127.0.0.1:{port}", code=3)
        assert f"no rank listens: can't listen on tcp://127.0.0.1:{port}" in done.stderr
        assert "tcp://ADDRESS:FIRST-LAST" in done.stderr
        labs.cli("lab", "down")
    first = free_port()
    one = labs.cli("lab", "up", "--listen", f"tcp://127.0.0.1:{first}", code=3)  # one port, three ranks
    assert "do not listen" in one.stderr
    assert one.stdout.count(f"tcp://127.0.0.1:{first}") == 1
    labs.cli("lab", "down")
    done = labs.cli("lab", "up", "--listen", f"tcp://127.0.0.1:{first}-{first + 40}", "-o", "json")
    assert "listen" not in done.stderr
    where = {row["tcp"] for row in json.loads(done.stdout)["processes"] if row["tcp"]}
    assert len(where) == 3


def test_every_format_of_keys_list_has_the_roles(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, alice="observe", bob="inject")
    (ring.folder / "bob.key").unlink()  # bob asks from elsewhere
    done = subprocess.run(
        [sys.executable, "-m", "pdctl.cli", "keys", "list", "-o", "csv"],
        env={**ring.env, "PATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = {
        (row["name"], row["authorized"], row["role"], row["public"]) for row in csv.DictReader(io.StringIO(done.stdout))
    }
    assert rows == {
        ("alice", "alice", "observe", ring.pairs["alice"].public),
        ("server", "", "", ring.server.public),
        ("", "bob", "inject", ring.pairs["bob"].public),
    }
