"""Saved targets: where commands look, and where no fault is allowed."""

from __future__ import annotations

import json

import pytest

from tests.support.cluster import Cluster
from tests.support.patience import until

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.env["XDG_CONFIG_HOME"] = str(cluster.folder / "config")
    return cluster


def bare(cluster: Cluster) -> None:
    """Have commands look where they look by themselves, which is not where these ranks are."""
    for name in ("run", "record"):
        del cluster.env[f"PDCTL_{name.upper()}_DIR"]
    cluster.env["XDG_RUNTIME_DIR"] = str(cluster.folder / "elsewhere")


def test_a_context_says_where_to_look_and_forbids_faults(cluster):
    cluster.pair()
    places = ("--run-dir", cluster.env["PDCTL_RUN_DIR"], "--record-dir", cluster.env["PDCTL_RECORD_DIR"])
    assert cluster.run("context", "add", "prod", *places, "--inject", "never").returncode == 0
    assert cluster.run("context", "add", "lab", *places).returncode == 0
    bare(cluster)
    seen = json.loads(cluster.run("--context", "prod", "ranks", "-o", "json").stdout)
    assert len(seen["ranks"]) == 3

    inject = ("inject", "--rank", "decode:tp1", "--delay-metadata", "10m", "--for", "15m")
    refused = cluster.run("--context", "prod", *inject)
    assert refused.returncode == 5
    assert "prod" in refused.stderr
    cluster.env["PDCTL_CONTEXT"] = "prod"
    assert cluster.run(*inject).returncode == 5
    assert cluster.run("drill", "run", "metadata-gate", "--load", "none").returncode == 5
    assert cluster.faults() == []
    del cluster.env["PDCTL_CONTEXT"]

    assert cluster.run("context", "use", "lab").returncode == 0
    assert cluster.run(*inject, "--detach").returncode == 0
    until("a hit", lambda: any(row["held"] for row in cluster.faults()))
    assert cluster.run("--context", "prod", "heal", "--all").returncode == 0, "healing is allowed everywhere"
    listed = json.loads(cluster.run("context", "list", "-o", "json").stdout)["contexts"]
    assert {row["context"]: (row["used"], row["inject"]) for row in listed} == {
        "prod": (False, "never"),
        "lab": (True, "allow"),
    }


def test_an_unknown_context_is_named(cluster):
    done = cluster.run("--context", "nowhere", "ranks")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
