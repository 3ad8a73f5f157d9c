"""Ranks found by what their agents publish in the job's own TCPStore, and stores that are down, slow or no stores."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.agent.publish import reachable, store_address
from pdctl.protocol import keys, store_schema
from pdctl.protocol.model import Status
from tests.support.curve import Keyring, endpoint_of
from tests.support.patience import patience, until
from tests.support.tiny_ranks import TinyRanks, free_port, patient, stop

pytestmark = pytest.mark.system
ANYWHERE = "tcp://127.0.0.1"
AWAY = dict.fromkeys(("PDCTL_RUN_DIR", "PDCTL_RECORD_DIR"), "")


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, alice="observe")


def loaded(run: Callable[[str], subprocess.CompletedProcess[str]], limit_s: int) -> subprocess.CompletedProcess[str]:
    """Run a command with ``--timeout``, again and for twice as long until its child process has loaded torch in that time."""
    while True:
        done = run(str(limit_s))
        if "torch was not loaded" not in done.stderr:
            return done
        limit_s *= 2


class Job:
    """A process group of two tiny ranks whose agents publish, and its store."""

    def __init__(self, ranks: TinyRanks, ring: Keyring, then: str = "sleep", **env: str) -> None:
        self.port = free_port()
        self.ranks, self.ring = ranks, ring
        args = ("--size", 2, "--port", self.port, "--then", then)
        self.children = [ranks.begin("--rank", n, *args, PDCTL_LISTEN=ANYWHERE, **ring.env, **env) for n in (0, 1)]
        for child in self.children:
            ranks.ready(child)
        until("both ranks in the store", lambda: len(self.names()) == 2)

    def client(self) -> Any:
        from torch.distributed import TCPStore

        wait = datetime.timedelta(seconds=60)
        return TCPStore("127.0.0.1", self.port, None, False, timeout=wait, wait_for_workers=False)

    def names(self) -> list[str]:
        store = self.client()
        count = int(store.get(store_schema.COUNT)) if store.check([store_schema.COUNT]) else 0
        there = [store_schema.index(n) for n in range(1, count + 1)]
        return [store.get(name).decode() for name in there if store.check([name])]

    def entry(self, name: str) -> store_schema.Entry:
        return msgspec.json.decode(self.client().get(name), type=store_schema.Entry)

    def publish(self, entry: store_schema.Entry, beat: store_schema.Beat | None) -> None:
        """Put an entry into the store that no agent has put there."""
        store, name = self.client(), store_schema.name(entry.registration.identity)
        store.set(name, msgspec.json.encode(entry).decode())
        if beat is not None:
            store.set(store_schema.beat(name), msgspec.json.encode(beat).decode())
        store.set(store_schema.index(store.add(store_schema.COUNT, 1)), name)

    def pdctl(self, *args: str, code: int, **env: str) -> subprocess.CompletedProcess[str]:
        named = () if "--store" in args else ("--store", f"127.0.0.1:{self.port}")
        done = loaded(
            lambda limit: self.ranks.pdctl(
                *named, *args, "--rank-timeout", "120", "--timeout", limit, **AWAY, **self.ring.env, **env
            ),
            40,
        )
        assert done.returncode == code, done
        return done

    def rows(self, *args: str, code: int, **env: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.pdctl(*args, "ranks", "-o", "json", code=code, **env).stdout)[
            "ranks"
        ]
        return found


def old() -> store_schema.Beat:
    return store_schema.Beat(1, time.time_ns() - 3600 * 10**9)


def test_one_address_is_enough_to_find_and_ask_all_ranks(ranks: TinyRanks, ring: Keyring) -> None:
    job = Job(ranks, ring, "loop")
    want = [(child.pid, "live", endpoint_of(ranks, child.pid)) for child in job.children]
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port)}
    there = job.rows("--store", "env", "--server-key", ring.server.public, code=0, **torchrun)
    assert [(row["pid"], row["state"], row["endpoint"]) for row in there] == want
    shown = json.loads(job.pdctl("diff-queues", "-o", "json", code=0).stdout)
    assert [group["verdict"] for group in shown["groups"]] == ["AGREE"]
    other = job.rows("--server-key", ring.pairs["alice"].public, code=4)
    assert all("not the one" in row["reason"] for row in other)


def test_agents_publish_the_other_key_they_took(ranks: TinyRanks, ring: Keyring) -> None:
    job = Job(ranks, ring)
    public = keys.make(ring.folder, keys.SERVER, replace=True).public
    until(
        "the new key in the store",
        lambda: {job.entry(name).registration.server_key for name in job.names()} == {public},
    )
    rows = job.rows("--server-key", public, code=0)
    assert [row["state"] for row in rows] == ["live", "live"]


def test_ranks_say_which_store_they_are_in(ranks: TinyRanks) -> None:
    """Also those that publish nothing: whoever is on their host knows what to give to --store elsewhere."""
    port = free_port()
    children = [ranks.begin("--rank", n, "--size", 2, "--port", port) for n in (0, 1)]
    for child in children:
        ranks.ready(child)
    assert [row["store"] for row in ranks.rows(code=0)] == [f"127.0.0.1:{port}"] * 2
    wide = ranks.pdctl("ranks", "-o", "wide", *patient(), COLUMNS="300")
    assert f"127.0.0.1:{port}" in wide.stdout
    alone = ranks.start(TINY_INSTANCE="alone", TINY_SERVICE="alone")
    assert {row["store"] for row in ranks.rows(code=0) if row["pid"] == alone.pid} == {""}


def test_entries_of_processes_that_are_gone_are_told_from_live_ones(ranks: TinyRanks, ring: Keyring) -> None:
    job = Job(ranks, ring)
    second = job.children[1]
    [name] = [name for name in job.names() if f"/{second.pid}-" in name]
    real = job.entry(name)
    pids = itertools.count(5_000_000)  # of no process here

    def like(service: str, endpoint: str) -> store_schema.Entry:
        who: dict[str, Any] = {
            "service": service,
            "instance": f"{service} once",
            "pid": next(pids),
            "started_wall_ns": 1,
        }
        identity = msgspec.structs.replace(real.registration.identity, **who)
        registration = msgspec.structs.replace(real.registration, identity=identity)
        return msgspec.structs.replace(real, registration=registration, endpoint=endpoint)

    nobody = f"tcp://127.0.0.1:{free_port()}"
    job.publish(like("replaced", real.endpoint), old())
    job.publish(like("vanished", nobody), old())
    job.publish(like("unheard", nobody), None)
    job.publish(like("tiny", nobody), old())
    job.client().set("pdctl/rubbish", "{not json")
    job.client().set(store_schema.index(job.client().add(store_schema.COUNT, 1)), "pdctl/rubbish")
    done = job.pdctl("ranks", "-o", "json", code=3)
    rows = {(row["service"], row["tp"]): row for row in json.loads(done.stdout)["ranks"]}
    assert [rows["tiny", tp]["state"] for tp in (0, 1)] == ["live", "live"]
    assert {rows[service, 1]["state"] for service in ("replaced", "vanished", "unheard")} == {"dead"}
    assert "another process" in rows["replaced", 1]["reason"]
    seen = re.search(r"last heartbeat in the store was (\d+) s ago", rows["vanished", 1]["reason"])
    assert seen is not None
    assert int(seen[1]) >= 3600
    assert "no heartbeat" in rows["unheard", 1]["reason"]
    assert json.loads(done.stdout)["earlier"] == 1
    assert any("rubbish" in problem for problem in json.loads(done.stdout)["problems"])

    second.kill()
    second.wait()
    row = next(row for row in job.rows(code=3) if row["pid"] == second.pid)
    assert (row["state"], "nobody listens" in row["reason"]) == ("dead", True), row
    # One that ends in good order says so itself.
    left = Job(ranks, ring, "exit", TINY_SERVICE="leaves", TINY_INSTANCE="leaves")
    assert left.children[1].stdin is not None
    left.children[1].stdin.close()
    left.children[1].stdin = None
    left.children[1].wait()
    row = next(row for row in left.rows(code=3) if row["pid"] == left.children[1].pid)
    assert (row["state"], "ended" in row["reason"]) == ("dead", True), row


def test_a_rank_that_does_not_listen_is_listed_with_the_reason(ranks: TinyRanks, ring: Keyring, tmp_path: Path) -> None:
    job = Job(ranks, Keyring(tmp_path / "nobody"))
    rows = job.rows(code=4)
    assert [row["state"] for row in rows] == ["silent", "silent"]
    assert all("no client key is authorised" in row["reason"] for row in rows)


def test_an_entry_without_a_key_is_not_believed_off_loopback(ranks: TinyRanks, ring: Keyring) -> None:
    job = Job(ranks, ring)
    real = job.entry(job.names()[0])
    open_ = msgspec.structs.replace(real.registration, server_key="")
    job.client().set(job.names()[0], msgspec.json.encode(store_schema.Entry(open_, "tcp://192.0.2.9:7311")).decode())
    reasons = {row["reason"] for row in job.rows(code=3)}
    assert reasons == {"", "it has no key in the store"}


@contextmanager
def silent_server() -> Iterator[int]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    kept.append(server.accept()[0])
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


def test_what_is_no_store_costs_its_deadline_at_most(ranks: TinyRanks, ring: Keyring) -> None:
    web = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    with silent_server() as silent:
        for address, why in (
            (f"127.0.0.1:{free_port()}", "no connection"),
            (f"127.0.0.1:{web.server_port}", "TCPStore"),
            (f"127.0.0.1:{silent}", "no TCPStore"),
            ("192.0.2.1:29500", "no connection"),
        ):
            done = loaded(
                lambda limit, address=address: ranks.pdctl(
                    "--store", address, "ranks", "--timeout", limit, **AWAY, **ring.env
                ),
                20,
            )
            assert done.returncode == 4, done
            assert address in done.stderr
            assert why in done.stderr
            assert "Traceback" not in done.stderr
    web.shutdown()
    web.server_close()
    for wrong in ("nowhere", "http://127.0.0.1:80/x", "127.0.0.1:0", "env"):
        done = ranks.pdctl("--store", wrong, "ranks", **AWAY, **ring.env)
        assert done.returncode == 2, done


def test_a_stopped_store_is_given_up_and_the_other_one_is_used(ranks: TinyRanks, ring: Keyring) -> None:
    stopped = Job(ranks, ring, TINY_SERVICE="a", TINY_INSTANCE="a")
    works = Job(ranks, ring, TINY_SERVICE="b", TINY_INSTANCE="b")
    stop(stopped.children[0])  # it hosts the store
    both = ("--store", f"127.0.0.1:{stopped.port}", "--store", f"127.0.0.1:{works.port}")
    done = works.pdctl(*both, "ranks", "-o", "json", code=3)
    found = json.loads(done.stdout)
    assert [row["pid"] for row in found["ranks"]] == [child.pid for child in works.children]
    assert any(str(stopped.port) in problem for problem in found["problems"])
    stopped.children[0].send_signal(signal.SIGCONT)


def test_an_agent_whose_store_never_answers_does_not_stop_its_rank(ranks: TinyRanks, ring: Keyring) -> None:
    from pdctl.targets.client import Client

    with silent_server() as silent:
        port = free_port()
        child = ranks.start(
            "--size", 1, "--port", port, "--then", "loop",
            PDCTL_LISTEN=ANYWHERE, PDCTL_STORE=f"127.0.0.1:{silent}", **ring.env,
        )  # fmt: skip
        rank = ring.rank(endpoint_of(ranks, child.pid), "alice")
        with Client(timeout_s=600, rank_timeout_s=60) as client:

            def turns() -> int:
                [answer] = client.ask([rank], "status", Status)
                assert answer.body is not None, answer
                return answer.body.ticks

            seen = turns()
            until("twenty more turns", lambda: turns() > seen + 20)
        child.terminate()
        assert child.wait(timeout=patience(60)) == -signal.SIGTERM


def test_where_an_agent_publishes_and_what() -> None:
    assert store_address({"PDCTL_STORE": "off"}) is None
    assert store_address({"PDCTL_STORE": "node1:29500"}) == ("node1", 29500)
    assert store_address({"PDCTL_STORE": "[::1]:29500"}) == ("::1", 29500)

    def at(tcp: str, **env: str) -> str:
        from pdctl.protocol.paths import Registration
        from tests.support.identities import identity

        return reachable(Registration(1, identity(), tcp=tcp), "127.0.0.1", env)

    assert at("") == ""
    assert at("tcp://10.1.2.3:7311") == "tcp://10.1.2.3:7311"
    assert at("tcp://0.0.0.0:7311", PDCTL_ADVERTISE="node1") == "tcp://node1:7311"
    assert at("tcp://0.0.0.0:7311").startswith("tcp://")
    assert at("tcp://0.0.0.0:7311") != "tcp://0.0.0.0:7311"
