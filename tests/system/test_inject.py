"""inject, faults and heal against real ranks: separate processes with the real agent, killed and stopped for real."""

from __future__ import annotations

import json
import signal

import pytest

from pdctl.protocol.model import EventKind
from pdctl.recording.reader import read
from tests.support.cluster import INJECT, every_row_once, held
from tests.support.patience import patience, until

pytestmark = pytest.mark.system


def test_delays_one_rank_for_a_while_and_lets_go(cluster):
    prefill = cluster.pair()
    done = cluster.run(*INJECT, "300ms", "--for", f"{patience(2):.0f}s", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "pdctl.injected"
    assert told["healed"] is True
    assert told["fired"] == told["released"] > 0
    assert told["target"] == "decode dp0 pp0 tp1"
    assert {tp for _, tp in cluster.late()} == {1}
    assert len(cluster.late()) == told["fired"]
    every_row_once(cluster)
    assert cluster.faults() == []
    assert [line["what"] for line in cluster.audit()] == ["inject", "heal", "over"]
    events = read(next((cluster.folder / "rec").glob(f"{prefill.pid}-*"))).events()
    kinds = [event.kind for event in events]
    assert kinds.count(EventKind.FAULT_FIRED) == told["fired"]
    assert kinds.count(EventKind.FAULT_ARMED) == kinds.count(EventKind.FAULT_ENDED) == 1


def test_arm_wait_and_release_are_three_commands(cluster):
    cluster.pair()
    detached = cluster.run(*INJECT, "10m", "--for", "12m", "--detach")
    assert detached.returncode == 0, detached.stderr
    fault = detached.stdout.strip()
    waited = cluster.run("faults", "--wait-for-hit", fault)
    assert waited.returncode == 0, waited.stderr
    (row,) = cluster.faults()
    assert (row["fault"], row["fired"], row["held"], row["rank"]) == (fault, 1, 1, "prefill dp0 pp0 tp0")
    other = cluster.run(*INJECT, "1s")
    assert other.returncode == 5
    assert fault in other.stderr
    healed = cluster.run("heal", fault)
    owner = row["owner"]
    assert (healed.returncode, healed.stdout) == (0, f"ended: {fault} of {owner}\n")
    assert cluster.faults() == []
    every_row_once(cluster)
    again = cluster.run("heal", "--all")
    assert again.returncode == 0
    assert "no fault is in place on the 3 live ranks" in again.stdout
    (gone,) = cluster.faults("--past")
    assert (gone["ended"], gone["released"]) == ("heal", 1)


def test_a_killed_command_heals(cluster):
    cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    command.kill()
    until("the end of the lease", lambda: not cluster.faults())
    assert cluster.faults("--past")[0]["ended"] == "lease lost"
    every_row_once(cluster)


def test_a_stopped_command_heals_and_says_so_when_it_goes_on(cluster):
    cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    command.send_signal(signal.SIGSTOP)
    until("the end of the lease", lambda: not cluster.faults())
    command.send_signal(signal.SIGCONT)
    out, _ = command.communicate(timeout=patience(60))
    assert "lease lost" in out
    every_row_once(cluster)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_heals_before_the_command_ends(cluster, number):
    cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    command.send_signal(number)
    out, err = command.communicate(timeout=patience(60))
    assert command.returncode == 130, err
    assert "healed" in out
    assert cluster.faults() == []
    every_row_once(cluster)


def test_until_hit_ends_after_the_first_row_is_written(cluster):
    cluster.pair()
    done = cluster.run(*INJECT, "500ms", "--for", "5m", "--until-hit")
    assert done.returncode == 0, done.stderr
    assert cluster.late()
    assert cluster.faults() == []


def test_hits_end_it_inside_the_rank(cluster):
    cluster.pair()
    done = cluster.run(*INJECT, "100ms", "--for", "5m", "--hits", "2")
    assert done.returncode == 0, done.stderr
    assert len(cluster.late()) == 2
    assert "hit count reached" in done.stdout


def test_a_fault_that_never_fires_is_inconclusive(cluster):
    cluster.pair("--every", "0")
    done = cluster.run(*INJECT, "1s", "--for", "1s")
    assert done.returncode == 3
    assert "its site was not visited" in done.stderr
    other = cluster.run(*INJECT, "1s", "--for", "1s", "--detach")
    assert other.returncode == 0
    waited = cluster.run("faults", "--wait-for-hit", other.stdout.strip())
    assert waited.returncode == 3
    assert "without having fired" in waited.stderr


def test_a_dry_run_changes_nothing(cluster):
    prefill = cluster.pair()
    done = cluster.run(*INJECT, "5s", "--room", "7", "--dry-run")
    assert done.returncode == 0, done.stderr
    for part in ("decode dp0 pp0 tp1", "prefill dp0 pp0 tp0", f"pid {prefill.pid}", "room       7", "after 1m", "3s"):
        assert part in done.stdout
    assert cluster.faults("--past") == []
    assert not (cluster.folder / "state").exists()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--rank", "decode:tp9", "--delay-metadata", "1s"), 2, "no decode rank matches decode:tp9"),
        (("--rank", "decode", "--delay-metadata", "1s"), 5, "--allow-ranks 2"),
        (("--rank", "prefill", "--delay-metadata", "1s"), 2, "Name the decode rank that shall feel it"),
        (("--rank", "tp1", "--rank", "decode:x1", "--delay-metadata", "1s"), 2, "neither a role"),
        (("--rank", "tp1"), 2, "name one fault"),
        (("--rank", "tp1", "--abort", "--drop-status"), 2, "one fault at a time"),
        (("--rank", "tp1", "--flip-poll", "Succes"), 2, "is no state"),
        (("--rank", "tp1", "--skew-poll", "31s"), 5, "over the limit of 30s"),
        (("--rank", "decode:tp1", "--fail-transfer"), 5, "fault.fail-transfer"),
        (("--delay-metadata", "1s"), 2, "--rank"),
        (("--rank", "tp1", "--delay-metadata", "-1s"), 2, "negative"),
        (("--rank", "tp1", "--delay-metadata", "0s"), 2, "zero"),
        (("--rank", "tp1", "--delay-metadata", "99h"), 5, "over the limit"),
        (("--rank", "tp1", "--delay-metadata", "2m"), 2, "longer than the fault lives"),
        (("--rank", "tp1", "--delay-metadata", "1s", "--for", "16m"), 5, "over the limit of 15m"),
    ],
)
def test_refuses_with_a_reason_and_changes_nothing(cluster, args, code, says):
    cluster.pair()
    done = cluster.run("inject", *args)
    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert cluster.faults("--past") == []


def test_unarmed_ranks_refuse(cluster):
    cluster.pair(PDCTL_ARM="0")
    done = cluster.run(*INJECT, "1s")
    assert done.returncode == 5
    assert "was not armed" in done.stderr
    assert "PDCTL_ARM=1" in done.stderr


def test_a_missing_seam_is_named(cluster):
    cluster.pair("--no-site")
    done = cluster.run(*INJECT, "1s")
    assert done.returncode == 5
    assert "WriterAdapter.write" in done.stderr


def test_another_clusters_ranks_are_left_alone(cluster):
    cluster.pair()
    stranger = cluster.rank("prefill", "--service", "b", PDCTL_CLUSTER="other")
    done = cluster.run(*INJECT, "1s", "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["on"]) == 1
    assert str(stranger.pid) not in done.stdout


def test_a_stopped_rank_may_hold_a_fault_and_a_dead_one_not(cluster):
    prefill = cluster.pair()
    assert cluster.run(*INJECT, "10m", "--for", "15m", "--detach").returncode == 0
    until("a hit", lambda: held(cluster))
    prefill.send_signal(signal.SIGSTOP)
    unsure = cluster.run("heal", "--all", "--rank-timeout", "500ms")
    assert unsure.returncode == 6
    assert "may hold a fault" in unsure.stderr
    assert "SIGSTOP" in unsure.stderr
    listed = cluster.run("faults", "--rank-timeout", "500ms")
    assert listed.returncode == 3
    prefill.send_signal(signal.SIGCONT)
    assert cluster.run("heal", "--all").returncode == 0
    assert cluster.faults() == []
    every_row_once(cluster)
    assert cluster.run(*INJECT, "10m", "--for", "15m", "--detach").returncode == 0
    prefill.kill()
    prefill.wait()
    dead = cluster.run("heal", "--all")
    assert dead.returncode == 0, dead.stderr


def test_half_of_the_ranks_are_dead_and_one_is_stopped(cluster):
    cluster.pair()
    prefills = [cluster.rank("prefill", "--tp", str(tp), "--size", "4") for tp in (1, 2, 3)]
    assert cluster.run(*INJECT, "10m", "--for", "15m", "--detach").returncode == 0
    until("a hit", lambda: held(cluster))
    for dead in (*cluster.started[:1], *prefills[:2]):
        dead.kill()
        dead.wait()
    done = cluster.run("heal", "--all")
    assert done.returncode == 0, done.stderr
    assert "ended: f-" in done.stdout
    assert done.stderr.count("not reached, and holds nothing: its process has ended") == 3
    prefills[2].send_signal(signal.SIGSTOP)
    again = cluster.run("heal", "--all", "--timeout", "2s")
    assert again.returncode == 6
    assert f"(pid {prefills[2].pid}) may hold a fault" in again.stderr
    assert again.stderr.count("not reached, and holds nothing") == 3


def test_a_rank_that_dies_under_a_fault_leaves_nothing_behind(cluster):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    prefill.kill()
    prefill.wait()
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=patience(60))
    assert command.returncode == 130, err
    assert "healed" in out


def test_no_ranks_at_all(cluster):
    for args in ((*INJECT, "1s"), ("faults",), ("heal", "--all")):
        done = cluster.run(*args)
        assert done.returncode == 4
        assert "no ranks found" in done.stderr
