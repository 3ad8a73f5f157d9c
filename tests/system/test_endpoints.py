"""Endpoints that do not answer: why, and who is meant."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.curve import Keyring, endpoint_of
from tests.support.tiny_ranks import ROOT, TinyRanks, free_port, patient, stop

pytestmark = pytest.mark.system
LISTEN = {"PDCTL_LISTEN": "tcp://127.0.0.1"}


def away(ranks: TinyRanks, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pdctl as on a host where no rank has ever been."""
    elsewhere = {"PDCTL_RUN_DIR": "", "PDCTL_RECORD_DIR": "", "XDG_RUNTIME_DIR": str(ranks.run_dir.parent / "none")}
    return ranks.pdctl(*args, **elsewhere, **env)


def at(ring: Keyring, *endpoints: str, key: str = "alice") -> list[str]:
    named = [word for endpoint in endpoints for word in ("--endpoint", endpoint)]
    return [*named, "--server-key", ring.server.public, "--key", key]


def rows(done: subprocess.CompletedProcess[str], code: int) -> list[dict[str, Any]]:
    assert done.returncode == code, done
    found: list[dict[str, Any]] = json.loads(done.stdout)["ranks"]
    return found


def test_an_endpoint_that_is_empty_is_not_this_hosts_ranks(ranks: TinyRanks, ring: Keyring) -> None:
    ranks.start(**ring.env)
    for words in (("--endpoint", ""), ("--store", " ")):
        done = ranks.pdctl(*words, "heal", "--all")
        assert (done.returncode, done.stdout) == (2, ""), done
        assert f"{words[0]}: it is empty" in done.stderr


def test_what_is_remembered_is_read_from_a_plain_file_only(ranks: TinyRanks, ring: Keyring, tmp_path: Path) -> None:
    child = ranks.start(**LISTEN, **ring.env)
    kept = tmp_path / "cache" / "pdctl" / "reached.json"
    kept.parent.mkdir(parents=True)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **ring.env}
    for make in (lambda: os.mkfifo(kept), lambda: kept.symlink_to("/dev/zero"), lambda: kept.write_text("[1]")):
        make()
        done = away(ranks, *at(ring, endpoint_of(ranks, child.pid)), "ranks", "-o", "json", *patient(), **cache)
        assert [row["state"] for row in rows(done, 0)] == ["live"]
        kept.unlink()


def test_keys_that_are_no_directory(ranks: TinyRanks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (("keys", "list"), ("--endpoint", "tcp://127.0.0.1:9", "--server-key", "0" * 64, "ranks")):
        done = away(ranks, *words, PDCTL_KEYS=str(tmp_path / "file"))
        assert done.returncode == 2, done
        assert "holds no keys: Not a directory" in done.stderr


def test_no_key_was_given_where_one_is_needed(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(**LISTEN, **ring.env)
    command = ("--endpoint", endpoint_of(ranks, child.pid), "ranks", "-o", "json", "--rank-timeout", "2")
    [row] = rows(away(ranks, *command, **ring.env), 4)
    assert "it takes a key, and none was given (--server-key)" in row["reason"]


def test_a_name_that_leads_nowhere_is_said_to(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(**LISTEN, **ring.env)
    nowhere = "tcp://no-such-host.invalid:7311"
    asked = away(
        ranks, *at(ring, nowhere, endpoint_of(ranks, child.pid)), "ranks", "-o", "json", *patient(), **ring.env
    )
    found = {row["rank"]: row for row in rows(asked, 3)}
    assert "the name no-such-host.invalid can't be resolved" in found.pop(nowhere)["reason"]
    assert [row["state"] for row in found.values()] == ["live"], "and the other one is asked all the same"
    done = away(ranks, "--endpoint", nowhere, "dump", "queues")
    assert done.returncode == 4, done
    assert "can't be resolved" in done.stderr
    done = away(ranks, "--store", "no-such-host.invalid:29500", "ranks")
    assert done.returncode == 4, done
    assert "can't be resolved" in done.stderr


MUTE_NAME_SERVER = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
mute = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mute.bind(("127.0.0.1", 53))
done = subprocess.run([sys.executable, "-m", "pdctl.cli", *sys.argv[2:]])
asked = mute.recv(512, socket.MSG_DONTWAIT)
assert b"somewhere" in asked, asked
sys.exit(done.returncode)
"""


def test_a_name_server_that_never_answers_costs_the_deadline_at_most(ranks: TinyRanks, tmp_path: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode
    ):
        pytest.skip("no namespaces here")
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    names = ("--endpoint", "tcp://somewhere.example:7311", "--store", "somewhere.example:29500")
    command = (*names, "ranks", "-o", "json", "--timeout", "4", "--rank-timeout", "1")
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-c", MUTE_NAME_SERVER, str(resolv), *command],
        cwd=ROOT, env={**ranks.env, "PDCTL_RUN_DIR": "", "PDCTL_RECORD_DIR": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    [row] = rows(done, 4)
    assert "the name somewhere.example is not resolved within" in row["reason"]
    [problem] = json.loads(done.stdout)["problems"]
    assert "is not resolved within" in problem


def test_a_stopped_rank_is_one_row_by_the_name_it_had_when_it_was_reached(ranks: TinyRanks, ring: Keyring) -> None:
    children = [ranks.start("--rank", n, "--size", 2, **LISTEN, **ring.env, PDCTL_ARM="1") for n in (0, 1)]
    where = [endpoint_of(ranks, child.pid) for child in children]
    command = (*at(ring, *where), "ranks", "-o", "json", *patient())

    stop(children[1])
    strange, missed, answers = sorted(
        rows(away(ranks, *command, **ring.env), 3), key=lambda row: ("silent", "no agent", "live").index(row["state"])
    )
    assert (strange["rank"], strange["dp"], strange["pp"], strange["tp"]) == (where[1], -1, -1, -1)
    assert (missed["rank"], answers["rank"]) == ("decode dp0 pp0 tp1", "decode dp0 pp0 tp0")
    assert where[1] in missed["reason"], "it may be the one that is missed"
    for other in ("check", "faults", "stuck"):
        said = away(ranks, *at(ring, *where), other, *patient(), **ring.env)
        assert where[1] in said.stdout + said.stderr, said
        assert "-1" not in said.stdout + said.stderr
        assert "unknown dp" not in said.stdout + said.stderr
    trace = ranks.run_dir.parent / "one.pdtrace"
    recorded = away(ranks, *at(ring, *where), "record", str(trace), *patient(), **ring.env)
    assert recorded.returncode == 3, recorded
    with zipfile.ZipFile(trace) as held:
        manifest = held.read("manifest.json").decode()
    assert where[1].rpartition(":")[2] in manifest
    assert socket.gethostname() not in manifest, "names are taken out; that of each host, 127.0.0.1, is none"

    children[1].send_signal(signal.SIGCONT)
    assert [row["state"] for row in rows(away(ranks, *command, **ring.env), 0)] == ["live", "live"]
    stop(children[1])
    seen = rows(away(ranks, *command, **ring.env), 3)
    assert [(row["rank"], row["state"], row["pid"]) for row in seen] == [
        ("decode dp0 pp0 tp0", "live", children[0].pid),
        ("decode dp0 pp0 tp1", "silent", children[1].pid),
    ]
    assert "process is stopped" in seen[1]["reason"], "its gateway is not, and says so"
    assert "last reached" in seen[1]["reason"]
    kept = ranks.run_dir.parent / "cache/pdctl/reached.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert ring.pairs["alice"].secret not in kept.read_text()


def test_what_was_there_once_is_not_taken_for_what_is_there_now(ranks: TinyRanks, ring: Keyring) -> None:
    port = free_port()
    first = ranks.start(PDCTL_LISTEN=f"tcp://127.0.0.1:{port}", **ring.env)
    where = f"tcp://127.0.0.1:{port}"
    [row] = rows(away(ranks, *at(ring, where), "ranks", "-o", "json", *patient(), **ring.env), 0)
    assert row["pid"] == first.pid
    first.kill()
    first.wait()
    again = {"TINY_INSTANCE": "two", "PDCTL_ARM": "1", **ring.env}
    second = ranks.start("--rank", 1, "--size", 2, PDCTL_LISTEN=f"tcp://127.0.0.1:{port}", **again)
    other = ranks.start("--rank", 0, "--size", 2, **LISTEN, **again)
    stop(second)
    both = at(ring, where, endpoint_of(ranks, other.pid), key="bob")
    seen = rows(away(ranks, *both, "ranks", "-o", "json", **ring.env), 3)
    assert {(row["rank"], row["state"]) for row in seen} == {
        (where, "silent"), ("decode dp0 pp0 tp0", "live"), ("decode dp0 pp0 tp1", "no agent"),
    }  # fmt: skip
    # With nobody to contradict it the old name is told, as what it is; that it was not armed then clears nothing now.
    done = away(ranks, *at(ring, where, key="bob"), "ranks", "-o", "json", **ring.env)
    [row] = rows(done, 4)
    assert "last reached" in row["reason"]
    done = away(ranks, *at(ring, where, key="bob"), "heal", "--all", **ring.env)
    assert done.returncode == 6, done


def test_a_silent_endpoint_of_this_host_is_known_by_its_registration(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN="tcp://0.0.0.0", **ring.env)
    stop(child)
    where = endpoint_of(ranks, child.pid).replace("0.0.0.0", "127.0.0.1")
    command = (*at(ring, where), "ranks", "-o", "json", "--rank-timeout", "2")
    [row] = rows(away(ranks, *command, **ring.env), 4)
    assert (row["rank"], row["pid"]) == (where, 0), "nothing is known of it elsewhere"
    [row] = rows(ranks.pdctl(*command, **ring.env), 1)  # that it is stopped is a finding
    assert (row["rank"], row["pid"], row["state"]) == ("decode dp0 pp0 tp0", child.pid, "silent")
