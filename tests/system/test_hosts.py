"""Hosts that are asked over ssh: a program of that name runs what it is told, each host with directories of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT, TinyRanks, free_port, patient, stop

pytestmark = pytest.mark.system

SSH = """#!/bin/sh
case "$*" in *-oProxy*) exit 99;; esac
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
echo $$ >> "$HERE/started"
case $host in
    refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255;;
    hangs) exec sleep 600;;
    floods) exec yes "Welcome to floods";;
    bare) echo "sh: 1: pdctl: not found" >&2; exit 127;;
    old) echo "pdctl: No such command 'bridge'." >&2; exit 2;;
    chatty) echo "Welcome to chatty"; echo "It will be down on Friday." >&2; host=gpu1;;
esac
export PDCTL_RUN_DIR="$HERE/$host/run" PDCTL_RECORD_DIR="$HERE/$host/record" PATH="$HERE/bin/far:$PATH"
exec "$@"
"""
PDCTL = f"""#!/bin/sh
cd {ROOT}
exec {sys.executable} -m pdctl.cli "$@"
"""


class Cluster:
    """A real group of ranks, each on a host of its own, and whoever asks: where no rank has ever been."""

    def __init__(self, folder: Path, stack: ExitStack, count: int) -> None:
        self.folder = folder
        for place, text in (("bin/ssh", SSH), ("bin/far/pdctl", PDCTL)):
            file = folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        self.hosts = [stack.enter_context(TinyRanks(folder / f"gpu{n + 1}")) for n in range(count)]
        args = ("--size", count, "--port", free_port(), "--then", "loop")
        self.ranks = [one.begin("--rank", n, *args) for n, one in enumerate(self.hosts)]
        for one, child in zip(self.hosts, self.ranks, strict=True):
            one.ready(child)

    def pdctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "XDG_"))}
        env |= {"HERE": str(self.folder), "PATH": f"{self.folder / 'bin'}:{env['PATH']}", "COLUMNS": "80"}
        env["XDG_CACHE_HOME"] = env["XDG_STATE_HOME"] = env["XDG_CONFIG_HOME"] = str(self.folder / "home")
        command = [sys.executable, "-m", "pdctl.cli", *args]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    def rows(self, hosts: str, *args: str) -> dict[str, dict[str, Any]]:
        done = self.pdctl("--hosts", hosts, "ranks", "-o", "json", *(args or patient()))
        assert done.stdout, done
        return {row["rank"] if row["tp"] >= 0 else row["service"]: row for row in json.loads(done.stdout)["ranks"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("hosts"), stack, 2)


def test_a_group_on_two_hosts_is_one_group(cluster: Cluster) -> None:
    done = cluster.pdctl("--hosts", "gpu[1-2]", "diff-queues", "-o", "json", *patient())
    assert done.returncode == 0, done
    [group] = json.loads(done.stdout)["groups"]
    assert group["verdict"] == "AGREE"
    trace = cluster.folder / "both.pdtrace"
    done = cluster.pdctl("--hosts", "gpu[1-2]", "record", str(trace), *patient())
    assert done.returncode == 0, done
    again = cluster.pdctl("diff-queues", "--from", str(trace), "-o", "json")
    assert json.loads(again.stdout)["groups"][0]["verdict"] == "AGREE", again


def test_each_host_that_gives_no_ranks_is_a_row_with_the_reason(cluster: Cluster) -> None:
    rows = cluster.rows("chatty,gpu2,refused,floods,bare,old,none")
    states = {name: row["state"] for name, row in rows.items()}
    assert states.pop("decode dp0 pp0 tp0") == states.pop("decode dp0 pp0 tp1") == "live"
    assert set(states.values()) == {"silent"}
    words = {
        "refused": "Connection refused; ssh refused true has to work",
        "floods": "came before pdctl's first word, beginning 'Welcome to floods'",
        "bare": "pdctl can't be run there (exit code 127: sh: 1: pdctl: not found)",
        "old": "older than this one and has no bridge",
        "none": "no rank found there",
    }
    assert states.keys() == words.keys()
    for name, said in words.items():
        assert said in rows[name]["reason"], rows[name]


def test_a_host_that_hangs_holds_up_no_other_and_nothing_stays_behind(cluster: Cluster) -> None:
    started = cluster.folder / "started"
    started.unlink(missing_ok=True)
    rows = cluster.rows("hangs,gpu[1-2]", "--timeout", f"{patience(12):.0f}", "--rank-timeout", "5")
    assert rows["hangs"]["state"] == "silent"
    assert "no answer of ssh in time" in rows["hangs"]["reason"]
    assert [rows[f"decode dp0 pp0 tp{n}"]["state"] for n in (0, 1)] == ["live", "live"]
    pids = [int(line) for line in started.read_text().split()]
    assert len(pids) == 3
    until("all of it has ended", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_the_far_side_says_why_a_rank_is_silent_and_has_what_a_dead_one_recorded(cluster: Cluster) -> None:
    stop(cluster.ranks[1])
    row = cluster.rows("gpu[1-2]", "--timeout", "20", "--rank-timeout", "2")["decode dp0 pp0 tp1"]
    assert "process is stopped" in row["reason"], row
    cluster.ranks[1].send_signal(signal.SIGCONT)
    cluster.ranks[1].kill()
    cluster.ranks[1].wait()
    assert cluster.rows("gpu[1-2]")["decode dp0 pp0 tp1"]["state"] == "dead"
    done = cluster.pdctl("--hosts", "gpu[1-2]", "diff-queues", "-o", "json", *patient())
    [group] = json.loads(done.stdout)["groups"]
    assert group["compared"]["decode.transfer"] > 0, group


def test_what_is_no_host_is_refused_before_anything_runs(cluster: Cluster) -> None:
    for words in (("--hosts=-oProxyCommand=id",), ("--hosts", " "), ("--hosts", "a", "--via", "ssh pdctl")):
        done = cluster.pdctl(*words, "ranks")
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "Traceback" not in done.stderr
