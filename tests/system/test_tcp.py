"""Ranks reached over TCP: who gets through, with which role, and what the others are told."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.protocol import keys, wire
from pdctl.protocol.errors import Exit
from pdctl.protocol.model import Snapshot
from pdctl.protocol.paths import Registration
from pdctl.targets.client import Client, Silence
from tests.support.cluster import Cluster
from tests.support.curve import Curve, Keyring, endpoint_of, notes
from tests.support.patience import patience, until
from tests.support.tiny_ranks import TinyRanks, free_port, patient

pytestmark = pytest.mark.system
ANYWHERE = "tcp://127.0.0.1"


def asked_from_afar(ranks: TinyRanks, ring: Keyring, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pdctl where no directory of the ranks is known."""
    away = dict.fromkeys(("PDCTL_RUN_DIR", "PDCTL_RECORD_DIR"), "")
    return ranks.pdctl(*args, **away, **ring.env, **env)


def options(ring: Keyring, *endpoints: str, key: str = "alice") -> list[str]:
    named = [word for endpoint in endpoints for word in ("--endpoint", endpoint)]
    return [*named, "--server-key", ring.server.public, "--key", key]


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["ranks"]
    return found


def test_ranks_are_found_by_endpoint_and_all_of_their_answers_come_over_curve(ranks: TinyRanks, ring: Keyring) -> None:
    children = [ranks.start("--rank", n, "--size", 2, PDCTL_LISTEN=ANYWHERE, **ring.env) for n in (0, 1)]
    where = [endpoint_of(ranks, child.pid) for child in children]
    done = asked_from_afar(ranks, ring, *options(ring, *where), "ranks", "-o", "json", *patient())
    assert done.returncode == 0, done
    assert [(row["pid"], row["state"], row["endpoint"]) for row in rows(done)] == [
        (child.pid, "live", endpoint) for child, endpoint in zip(children, where, strict=True)
    ]
    # One of two endpoints: the other rank is still expected, and missed.
    done = asked_from_afar(ranks, ring, *options(ring, where[0]), "ranks", "-o", "json", *patient())
    assert done.returncode == 3, done
    assert [row["state"] for row in rows(done)] == ["live", "no agent"]
    # What was recorded is on the other host: it comes through the socket.
    kept = ranks.run_dir.parent / "far.pdtrace"
    done = asked_from_afar(ranks, ring, *options(ring, *where), "record", str(kept), "-o", "json", *patient())
    assert done.returncode == 0, done
    assert [rank["kept"] for rank in json.loads(done.stdout)["trace"]["ranks"]] == ["whole", "whole"]


def test_a_context_holds_endpoints_and_the_names_of_keys(ranks: TinyRanks, ring: Keyring, tmp_path: Path) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    given = ["--endpoint", endpoint_of(ranks, child.pid), "--server-key", ring.server.public, "--key", "alice"]
    assert asked_from_afar(ranks, ring, "context", "add", "far", *given, **config).returncode == 0
    listed = json.loads(asked_from_afar(ranks, ring, "context", "list", "-o", "json", **config).stdout)["contexts"]
    assert [(row["endpoints"], row["key"]) for row in listed] == [([endpoint_of(ranks, child.pid)], "alice")]
    done = asked_from_afar(ranks, ring, "--context", "far", "ranks", "-o", "json", *patient(), **config)
    assert [row["pid"] for row in rows(done)] == [child.pid], done


def test_a_rank_of_this_host_is_reached_by_its_file_where_that_is_named_too(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    both = options(ring, endpoint_of(ranks, child.pid))
    done = ranks.pdctl(*both, "ranks", "-o", "json", *patient(), **ring.env)
    assert [row["endpoint"].partition(":")[0] for row in rows(done)] == ["ipc"], done


def test_without_keys_it_does_not_listen_and_says_so(ranks: TinyRanks, ring: Keyring, tmp_path: Path) -> None:
    none = {"PDCTL_KEYS": str(tmp_path / "none")}
    nobody = Keyring(tmp_path / "nobody")
    loose = Keyring(tmp_path / "loose", alice="observe")
    (loose.folder / "server.key").chmod(0o644)
    cases: list[tuple[str, dict[str, str], str]] = [
        ("tcp://0.0.0.0", none, "server.key"),
        (ANYWHERE, none, "server.key"),
        (ANYWHERE, nobody.env, "no client key is authorised"),
        (ANYWHERE, loose.env, "0644"),
        ("tcp://0.0.0.0", {**ring.env, "PDCTL_LISTEN_OPEN": "observe"}, "loopback"),
        ("tcp://somewhere.example:80:90", ring.env, "write tcp://"),
        ("tcp://192.0.2.7:7000", ring.env, "can't listen"),
    ]
    children = [
        ranks.begin("--size", len(cases), "--rank", n, PDCTL_LISTEN=listen, **env)
        for n, (listen, env, _) in enumerate(cases)
    ]
    for child in children:
        ranks.ready(child)
    for child, row, (_, _, why) in zip(children, ranks.rows(code=0), cases, strict=True):
        assert (row["pid"], row["state"], row["tcp"]) == (child.pid, "live", "")
        assert why in row["tcp_off"]
        assert sum("no TCP socket" in note for note in notes(ranks, child.pid)) == 1
    shown = " ".join(ranks.pdctl("ranks", *patient()).stdout.split())
    assert "no client key is authorised" in shown


def test_loopback_is_open_only_where_that_was_asked_for(ranks: TinyRanks) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, PDCTL_LISTEN_OPEN="observe", PDCTL_ARM="1")
    with Curve(endpoint_of(ranks, child.pid), None) as anybody:
        assert not anybody.ask("queues").error
        refused = anybody.ask("inject")
    assert refused.code == Exit.UNREACHABLE
    assert "observe" in refused.error


def test_ports_of_a_range_are_taken_in_turn(ranks: TinyRanks, ring: Keyring) -> None:
    first = free_port()
    taken = [ranks.start(PDCTL_LISTEN=f"{ANYWHERE}:{first}-{first + 20}", **ring.env) for _ in range(2)]
    ports = [int(endpoint_of(ranks, child.pid).rpartition(":")[2]) for child in taken]
    assert ports[0] != ports[1]
    assert all(first <= port <= first + 20 for port in ports)


def test_the_role_of_the_key_decides(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, PDCTL_ARM="1", **ring.env)
    where = endpoint_of(ranks, child.pid)
    with Client(timeout_s=60, rank_timeout_s=60) as client:
        alice = ring.rank(where, "alice")
        assert client.ask([alice], "queues", Snapshot)[0].body is not None
        for op in ("inject", "renew", "heal", "inject", "inject"):
            [answer] = client.ask([alice], op, dict[str, Any])
            assert (answer.silence, answer.code) == (Silence.NOT_AUTHORISED, Exit.UNREACHABLE)
            assert "alice" in answer.reason
            assert "role observe" in answer.reason
    with Client(timeout_s=60, rank_timeout_s=60) as client:
        [answer] = client.ask([ring.rank(where, "bob")], "heal", dict[str, Any])
        assert answer.body == {"ended": [], "left": [], "owners": []}
    assert len([note for note in notes(ranks, child.pid) if "role observe" in note]) == 1, "once per key"


def test_who_is_not_authorised_hears_nothing_and_is_told_why(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    ring.stranger("eve")
    for _ in range(2):
        done = asked_from_afar(ranks, ring, *options(ring, where, key="eve"), "ranks", "-o", "json")
        assert done.returncode == 4, done
        assert [row["state"] for row in rows(done)] == ["silent"]
        assert "not authorised" in rows(done)[0]["reason"]
        other = ["--endpoint", where, "--server-key", ring.pairs["eve"].public, "--key", "alice"]
        done = asked_from_afar(ranks, ring, *other, "ranks", "-o", "json")
        assert done.returncode == 4, done
        assert "not authorised or not reachable" in rows(done)[0]["reason"]
        done = asked_from_afar(ranks, ring, "--endpoint", where, "ranks", "-o", "json")
        assert done.returncode == 4, done
        assert "not authorised or not reachable" in rows(done)[0]["reason"]
    said = notes(ranks, child.pid)
    assert len([note for note in said if "refused a client" in note]) == 1, said
    assert len([note for note in said if "did not get through" in note]) == 1, said
    free = f"tcp://127.0.0.1:{free_port()}"
    done = asked_from_afar(ranks, ring, *options(ring, where, free), "ranks", "-o", "json")
    assert done.returncode == 3, done
    assert {row["state"] for row in rows(done)} == {"live", "silent"}


def test_keys_change_while_the_rank_runs(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    ring.stranger("carol")

    def answers(name: str, wait_s: float) -> bool:
        with Client(timeout_s=wait_s, rank_timeout_s=wait_s) as client:
            return client.ask([ring.rank(where, name)], "hello", Registration)[0].body is not None

    assert not answers("carol", 1.0)
    with Curve(where, ring.access("alice")) as alice:
        assert not alice.ask("queues").error
        done = asked_from_afar(ranks, ring, "keys", "authorize", ring.pairs["carol"].public, "--role", "observe")
        assert done.returncode == 0, done
        until("carol let in", lambda: answers("carol", 5.0))
        assert asked_from_afar(ranks, ring, "keys", "revoke", "alice").returncode == 0
        # over the connection it has had all the time
        until("alice told that her key is revoked", lambda: alice.ask("queues").error)
    assert not answers("alice", 1.0)
    (ring.folder / keys.AUTHORIZED).chmod(0o666)
    until("nobody let in while others may write the list", lambda: not answers("carol", 1.0))
    (ring.folder / keys.AUTHORIZED).chmod(0o600)
    until("carol let in again", lambda: answers("carol", 5.0))


def test_the_agents_own_key_changes_while_the_rank_runs(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    [registered] = ranks.run_dir.glob(f"{child.pid}-*.json")

    def known_by() -> str:
        return str(json.loads(registered.read_text())["server_key"])

    def answers(server_key: str, wait_ms: int) -> bool:
        with Curve(where, ring.access("alice", server_key)) as alice:
            alice.hello()
            reply = alice.reply(wait_ms)
        return reply is not None and msgspec.msgpack.decode(reply.body, type=Registration).server_key == server_key

    former = ring.server.public
    assert asked_from_afar(ranks, ring, "keys", "new", "server").returncode == 2
    with Curve(where, ring.access("alice")) as alice:
        assert not alice.ask("queues").error
        done = asked_from_afar(ranks, ring, "keys", "new", "server", "--replace")
        assert (done.returncode, "--server-key" in done.stderr) == (0, True), done
        public = done.stdout.strip()
        assert public != former
        until("an answer with the new server key", lambda: answers(public, 5000))
        assert known_by() == public
        alice.send(wire.encode(wire.Request("queues", id=2)))
        assert alice.reply(1000) is None, "connections made with the former key have ended"
    assert not answers(former, 1000)
    # What can't be used changes nothing.
    halves = keys.read_pair(ring.folder / "server.key"), ring.server
    for number, text in enumerate(("public zz\n", f"public {halves[1].public}\nsecret {halves[0].secret}\n"), 1):
        (ring.folder / "server.key").write_text(text)
        said = "goes on with the key it has"
        until("the agent's note", lambda: sum(said in note for note in notes(ranks, child.pid)) == number)  # noqa: B023
    assert asked_from_afar(ranks, ring, "keys", "list").returncode == 3
    assert answers(public, 5000)
    assert known_by() == public
    assert asked_from_afar(ranks, ring, "keys", "new", "nobody", "--replace").returncode == 2


def test_an_agent_of_another_protocol_is_named_over_curve_too(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    with Curve(endpoint_of(ranks, child.pid), ring.access("alice")) as client:
        client.send(wire.encode(wire.Request("hello", v=99, id=3)))
        reply = client.reply()
    assert reply is not None
    assert "99" in reply.error
    assert reply.code == Exit.UNREACHABLE


def test_keys_are_made_once_and_kept_closed(ranks: TinyRanks, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    env = {"PDCTL_KEYS": str(folder)}
    before = os.umask(0)
    try:
        made = ranks.pdctl("keys", "new", "alice", **env)
    finally:
        os.umask(before)
    assert made.returncode == 0, made
    assert ranks.pdctl("keys", "new", "alice", **env).returncode == 2
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "alice.key")] == [0o700, 0o600]
    assert keys.read_pair(folder / "alice.key").public == made.stdout.strip()
    assert ranks.pdctl("keys", "authorize", "alice", "--role", "observe", **env).returncode == 0
    assert ranks.pdctl("keys", "authorize", "alice", "--role", "inject", **env).returncode == 0, "a role can be changed"
    listed = json.loads(ranks.pdctl("keys", "list", "-o", "json", **env).stdout)
    assert [(row["name"], row["role"]) for row in listed["authorized"]] == [("alice", "inject")]
    assert keys.read_pair(folder / "alice.key").secret not in json.dumps(listed)
    for bad, code in (
        (("keys", "authorize", "nobody", "--role", "observe"), 2),
        (("keys", "authorize", "alice", "--role", "root"), 2),
        (("keys", "revoke", "nobody"), 2),
        (("keys", "new", "../alice"), 2),
        (("--endpoint", "tcp://127.0.0.1:9", "--server-key", "zz", "ranks"), 2),
        (("--endpoint", "http://127.0.0.1:9", "ranks"), 2),
        (("--endpoint", "tcp://127.0.0.1:9", "--server-key", made.stdout.strip(), "--key", "bob", "ranks"), 2),
    ):
        done = ranks.pdctl(*bad, **env)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
    (folder / "alice.key").chmod(0o640)
    assert ranks.pdctl("keys", "list", **env).returncode == 3
    use = ("--endpoint", "tcp://127.0.0.1:9", "--server-key", made.stdout.strip(), "ranks")
    done = ranks.pdctl(*use, **env)
    assert done.returncode == 4, done
    assert "0640" in done.stderr


def test_a_fault_from_afar_takes_a_key_that_may_inject(tmp_path: Path, ring: Keyring) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.env |= {"PDCTL_LISTEN": ANYWHERE, **ring.env}
        cluster.pair()
        registered = (tmp_path / "run").glob("*.json")
        where = [json.loads(path.read_text())["tcp"] for path in registered]
        for name in ("PDCTL_RUN_DIR", "PDCTL_RECORD_DIR"):
            del cluster.env[name]
        fault = ("--rank", "decode:tp1", "--delay-metadata", "10m", "--for", "15m", "--detach")
        limits = ("--timeout", f"{patience(10):.0f}", "--rank-timeout", f"{patience(2):.0f}")

        refused = cluster.run(*options(ring, *where), "inject", *fault, *limits)
        assert refused.returncode == 4, refused
        assert "alice" in refused.stderr
        assert "role observe" in refused.stderr
        bob = options(ring, *where, key="bob")
        placed = cluster.run(*bob, "inject", *fault, *limits)
        assert placed.returncode == 0, placed
        seen = cluster.run(*options(ring, *where), "faults", "-o", "json", *limits)
        assert [row["kind"] for row in json.loads(seen.stdout)["faults"]] == ["delay-metadata"]
        assert cluster.run(*options(ring, *where), "heal", "--all", *limits).returncode == 6, (
            "it may still be there, for all alice knows"
        )
        healed = cluster.run(*bob, "heal", "--all", *limits)
        assert healed.returncode == 0, healed
    finally:
        cluster.close()
