"""Which ranks are shown: live ones, dead ones of the start that matters, and those that should be there and are not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pdctl.introspect.find import candidates
from pdctl.probes.run import Asked, find
from pdctl.protocol import paths
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Identity
from pdctl.protocol.processes import look
from pdctl.protocol.wire import PROTOCOL
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from pdctl.report.output import Output
from pdctl.targets.find import Found, discover, load_source
from pdctl.targets.places import parse_places
from pdctl.targets.reach import Reach
from pdctl.targets.sources.agentless import select_processes
from tests.support.identities import identity

GONE = 2**22 + 1
"""A pid that Linux never gives."""


class Host:
    """A run and a record directory to leave files of ranks in."""

    def __init__(self, folder: Path) -> None:
        self.run = paths.private_dir(folder / "run")
        self.record = paths.private_dir(folder / "record")
        self.env = Reach(run_dir=self.run, record_dir=self.record).over({})
        self.children: list[subprocess.Popen[bytes]] = []

    def process(self) -> tuple[int, int]:
        """Start a process that lives until the test ends; returns its pid and start time."""
        child = subprocess.Popen(["sleep", "1000"])
        self.children.append(child)
        return child.pid, look(child.pid).start

    def live(self, **changes: object) -> Identity:
        """Leave what a live rank has, without a socket."""
        pid, start = self.process()
        return self.dead(pid=pid, proc_start=start, **changes)

    def dead(self, *, json: bool = True, recording: bool = True, **changes: object) -> Identity:
        """Leave what a rank leaves that was killed."""
        who = identity(**{"pid": GONE, "proc_start": 5, **changes})
        stem = paths.stem(who.pid, who.proc_start)
        path = self.record / f"{stem}{paths.RECORDING_SUFFIX}"
        if recording:
            RecordingWriter.create(path, msgspec.json.encode(who), size=f.MIN_SIZE)
        if json:
            endpoint = f"ipc://{self.run}/{stem}{paths.SOCKET_SUFFIX}"
            r = paths.Registration(PROTOCOL, who, endpoint, recording=str(path) if recording else "")
            paths.write_private(self.run / f"{stem}{paths.REGISTRATION_SUFFIX}", msgspec.json.encode(r))
        return who


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for child in host.children:
        child.kill()
        child.wait()


def seen(found: Found) -> list[tuple[str, str, int]]:
    return [(rank.state, rank.identity.instance, rank.identity.tp) for rank in found.ranks]


def test_a_process_makes_a_rank_live_only_with_its_own_start_time(host: Host) -> None:
    pid, start = host.process()
    host.dead(pid=pid, proc_start=start - 1)
    assert seen(discover(parse_places(host.env))) == [("dead", "first", 0)]


def test_a_killed_process_that_nobody_reaped_is_dead(host: Host) -> None:
    who = host.live()
    os.kill(who.pid, 9)
    os.waitid(os.P_PID, who.pid, os.WEXITED | os.WNOWAIT)
    [rank] = discover(parse_places(host.env)).ranks
    assert (rank.state, rank.process.state) == ("dead", "Z")
    assert "zombie" in rank.process.why_silent


def test_a_scheduler_that_nobody_reaped_is_no_second_rank_beside_its_recording(host: Host) -> None:
    named = host.run.parent / "sglang::scheduler_TP0"  # a zombie has its short name alone
    named.symlink_to(shutil.which("sleep") or "sleep")
    child = subprocess.Popen([named, "1000"])
    host.children.append(child)
    host.dead(pid=child.pid, proc_start=look(child.pid).start)
    places = parse_places({**host.env, "PDCTL_OUTSIDE": "all"})
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid in [one.pid for one in candidates()]
    ranks = discover(places).ranks
    assert child.pid not in [one.pid for one in select_processes(places, ranks).selected]


def test_a_recording_alone_makes_a_rank(host: Host) -> None:
    who = host.dead(json=False)
    [rank] = discover(parse_places(host.env)).ranks
    assert (rank.state, rank.identity) == ("dead", who)
    assert rank.recording is not None


def test_a_registration_and_a_recording_of_one_process_are_one_rank(host: Host) -> None:
    host.live()
    [rank] = discover(parse_places(host.env)).ranks
    assert rank.live
    assert rank.recording is not None


def test_ranks_that_never_registered_have_a_row(host: Host) -> None:
    host.live(tp=1, tp_size=2, dp_size=2, dp=1)
    found = discover(parse_places(host.env))
    assert [(rank.identity.dp, rank.identity.tp, rank.state) for rank in found.ranks] == [
        (0, 0, "no agent"),
        (0, 1, "no agent"),
        (1, 0, "no agent"),
        (1, 1, "live"),
    ]
    assert all(rank.endpoint_off for rank in found.ranks if not rank.live)


def test_dead_ranks_of_a_start_that_still_lives_are_shown_and_those_of_earlier_starts_counted(host: Host) -> None:
    host.dead(pid=GONE + 1, instance="earlier", tp=0, tp_size=2, started_wall_ns=5)
    host.dead(pid=GONE + 2, instance="earlier", tp=1, tp_size=2, started_wall_ns=5)
    host.live(instance="now", tp=0, tp_size=2)
    host.dead(pid=GONE + 3, instance="now", tp=1, tp_size=2)
    found = discover(parse_places(host.env))
    assert seen(found) == [("live", "now", 0), ("dead", "now", 1)]
    assert found.earlier == 2
    everything = discover(parse_places(host.env), every_start=True)
    assert len(everything.ranks) == 4
    assert everything.earlier == 0


def test_where_nothing_of_a_service_lives_its_newest_start_is_shown(host: Host) -> None:
    host.dead(pid=GONE + 1, instance="older", started_wall_ns=5)
    host.dead(pid=GONE + 2, instance="newer", started_wall_ns=6)
    host.live(instance="other", service="prefill here:30000", role="prefill")
    found = discover(parse_places(host.env))
    assert seen(found) == [("live", "other", 0), ("dead", "newer", 0)]
    assert found.earlier == 1


def test_clusters_with_equal_services_are_kept_apart(host: Host) -> None:
    host.live(cluster="a", instance="x")
    host.dead(cluster="b", instance="y", started_wall_ns=1)
    assert [(r.identity.cluster, r.state) for r in discover(parse_places(host.env)).ranks] == [
        ("a", "live"),
        ("b", "dead"),
    ]


def test_a_directory_given_is_read_alone(host: Host, tmp_path: Path) -> None:
    host.live()
    other = tmp_path / "copied"
    other.mkdir()
    who = identity(tp=1, tp_size=2)
    RecordingWriter.create(other / "rank.pdrec", msgspec.json.encode(who), size=f.MIN_SIZE)
    found = load_source(other)
    assert seen(found) == [("no agent", "first", 0), ("recorded", "first", 1)]
    assert str(other) in found.ranks[0].endpoint_off


def test_files_that_can_not_be_read_are_named_and_the_others_still_shown(host: Host) -> None:
    host.live()
    (host.run / "1-1.json").write_bytes(b"{")
    (host.record / "2-2.pdrec").write_bytes(b"something else entirely")
    (host.record / "3-3.pdrec").write_bytes(b"PDCTL")
    (host.record / "notes.txt").write_text("not ours")
    found = discover(parse_places(host.env))
    assert len(found.ranks) == 1
    assert sorted(problem.split(": ")[0].rsplit("/", 1)[1] for problem in found.problems) == [
        "1-1.json",
        "2-2.pdrec",
        "3-3.pdrec",
    ]


def test_a_registration_of_another_protocol_is_a_rank_all_the_same(host: Host) -> None:
    pid, start = host.process()
    (host.run / f"{paths.stem(pid, start)}.json").write_text('{"protocol": 99, "identity": {"who": "knows"}}')
    [rank] = discover(parse_places(host.env)).ranks
    assert (rank.state, rank.protocol, rank.identity.pid) == ("live", 99, pid)


def test_a_rank_whose_process_is_not_visible_is_live_while_its_socket_listens(host: Host) -> None:
    who = host.dead()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host.run / f"{paths.stem(who.pid, who.proc_start)}.sock"))
        listener.listen()
        assert discover(parse_places(host.env)).ranks[0].live
    assert not discover(parse_places(host.env)).ranks[0].live


@pytest.mark.parametrize("which", ["run", "record"])
def test_a_directory_open_to_others_is_refused(host: Host, which: str) -> None:
    host.live()
    getattr(host, which).chmod(0o755)
    with pytest.raises(PdctlError, match="open to others") as caught:
        discover(parse_places(host.env))
    assert caught.value.code is Exit.UNREACHABLE
    assert "chmod 0700" in caught.value.next_step


def test_nothing_found_says_where_it_looked(host: Host) -> None:
    with pytest.raises(PdctlError) as caught:
        discover(parse_places(host.env)).require()
    assert str(host.run) in caught.value.message
    assert str(host.record) in caught.value.message
    assert caught.value.code is Exit.UNREACHABLE


def test_directories_that_do_not_exist_hold_no_ranks(tmp_path: Path) -> None:
    assert discover(parse_places(Reach(run_dir=tmp_path / "a", record_dir=tmp_path / "b").over({}))).ranks == ()


def test_absurd_sizes_in_a_file_do_not_make_absurd_answers(host: Host) -> None:
    host.dead(tp_size=10**9, dp_size=10**9, pp_size=10**9)
    assert len(discover(parse_places(host.env)).ranks) < 10_000


# ---- what the environment may say, and ranks without an agent --------------------------------------------------------


@pytest.mark.parametrize("said", ["bogus", "12,x", "all,12", "-1", "0,12", ",", "99999999999", "٣"])
def test_what_pdctl_outside_cant_say_is_an_error(host: Host, said: str) -> None:
    with pytest.raises(PdctlError, match=r"PDCTL_OUTSIDE=.* is none of: all, off, pids") as caught:
        discover(parse_places({**host.env, "PDCTL_OUTSIDE": said}))
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize("said", ["bogus", "true", "off,on"])
def test_what_pdctl_containers_cant_say_is_an_error(host: Host, said: str) -> None:
    with pytest.raises(PdctlError, match=r"PDCTL_CONTAINERS=.* is none of: on, off") as caught:
        discover(parse_places({**host.env, "PDCTL_CONTAINERS": said}))
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize("said", ["", " ", "all", "OFF", "no", "0", "12", " 12 , 13,"])
def test_what_they_can_say_is_none(host: Host, said: str) -> None:
    host.dead()
    containers = said if said.strip().lower() in ("off", "no", "0") else "on"
    assert seen(discover(parse_places({**host.env, "PDCTL_OUTSIDE": said, "PDCTL_CONTAINERS": containers})))


def test_a_trace_is_read_whatever_they_say(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.dead()
    monkeypatch.setenv("PDCTL_OUTSIDE", "bogus")
    monkeypatch.setenv("PDCTL_CONTAINERS", "bogus")
    found = find(Asked(Reach(), source=host.record), Output())
    assert seen(found) == [("recorded", "first", 0)]


def test_pids_that_are_named_have_rows_that_say_why_they_cant_be_read(host: Host) -> None:
    pid, _ = host.process()
    env = {**host.env, "PDCTL_OUTSIDE": f"{pid},{GONE}"}
    found = {r.identity.pid: r for r in discover(parse_places(env), outside=True, rank_timeout_s=60).ranks}
    assert {number: rank.state for number, rank in found.items()} == {pid: "outside", GONE: "dead"}
    assert "no Python process" in found[pid].silent_why
    assert found[GONE].silent_why == f"pid {GONE}: no such process"


def test_a_pid_that_is_named_and_left_a_registration_has_one_row(host: Host) -> None:
    host.dead()  # its pid is GONE
    env = {**host.env, "PDCTL_OUTSIDE": str(GONE)}
    assert seen(discover(parse_places(env), outside=True)) == [("dead", "first", 0)]


def test_where_agents_are_needed_processes_without_one_are_counted(host: Host) -> None:
    pid, _ = host.process()
    env = {**host.env, "PDCTL_OUTSIDE": f"{pid},{GONE}"}
    with pytest.raises(PdctlError, match="1 rank found on this host, none with pdctl's agent") as caught:
        discover(parse_places(env)).require()
    assert caught.value.code is Exit.UNREACHABLE
    assert f"pdctl attach {pid} --inject-agent --arm" in caught.value.next_step
