"""Far sides that run pdctl themselves, in place of which stand small programs: what each of their answers becomes."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from pdctl.protocol.rank import FoundRank, Silence
from pdctl.targets import bridge_near, bridges, children
from pdctl.targets.bridge_frames import MAGIC, MAX_PREAMBLE
from pdctl.targets.bridges import Far, open_all
from pdctl.targets.children import Child
from pdctl.targets.client import Client
from pdctl.targets.sources import hosts
from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT

HEAD = """
import os, struct, sys
import msgspec
from pdctl.targets.bridge_frames import *
from pdctl.protocol import wire
from tests.support.identities import identity
def ask():
    size, = struct.unpack("<I", os.read(0, 4))
    return msgspec.msgpack.decode(os.read(0, size), type=Ask)
def tell(told, before=b""):
    data = msgspec.msgpack.encode(told)
    os.write(1, before + struct.pack("<I", len(data)) + data)
def rank(key, **more):
    return FarRank(key, identity(tp=int(key)), "live", "ipc:///x", protocol=wire.PROTOCOL, **more)
def listing(*ranks, **more):
    tell(Told(ask().channel, msgspec.msgpack.encode(Listing(ranks=ranks, **more))), MAGIC)
"""


@pytest.fixture(autouse=True)
def no_bridges() -> object:
    yield
    for bridge in bridges._pool.values():
        bridge.close()
    bridges._pool.clear()
    children.end_aside()


def far(text: str, name: str = "gpu1", explain: bridges.Explain = bridges.explain) -> Far:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{HEAD}\n{text}"
    return Far(name, (sys.executable, "-c", code), explain)


def opened(*fars: Far, within_s: float = 30.0, problems: list[str] | None = None) -> list[FoundRank]:
    until_ns = time.monotonic() + patience(within_s)
    return open_all(fars, until_ns, [] if problems is None else problems)


@pytest.mark.parametrize(
    ("text", "silence", "why"),
    [
        ("sys.exit('nothing works here')", Silence.REFUSED, "exit code 1: nothing works here"),
        ("sys.exit(127)", Silence.REFUSED, "pdctl can't be run there"),
        ("sys.stderr.write(\"No such command 'bridge'\"); sys.exit(2)", Silence.REFUSED, "older than this one"),
        ("os.kill(os.getpid(), 9)", Silence.REFUSED, "signal 9"),
        ("print('This account is closed.')", Silence.REFUSED, "This account is closed."),
        (f"print('y' * {MAX_PREAMBLE + 1})", Silence.GARBAGE, "64 KiB came before pdctl's first word, beginning 'yyy"),
        (r"os.write(1, b'\n%pdctl-bridge-9%\n'); ask(); ask()", Silence.GARBAGE, "another version of pdctl's bridge"),
        ("os.write(1, MAGIC + b'\\xff' * 4)", Silence.GARBAGE, "was announced"),
        ("os.write(1, MAGIC + b'\\1\\0\\0\\0\\1')", Silence.GARBAGE, "can't be read"),
        ("tell(Told(ask().channel, b'no list'), MAGIC)", Silence.GARBAGE, "its list of ranks can't be read"),
        ("tell(Told(ask().channel, b'', 'error', '/run is not private'), MAGIC)", Silence.ERROR, "/run is not private"),
        ("tell(Told(ask().channel, bytes(5 << 20)), MAGIC)", Silence.GARBAGE, "was announced"),
        ("os.close(1); ask(); ask()", Silence.REFUSED, "no answer in time"),
        ("listing()", Silence.NO_AGENT, "no rank found there"),
        ("listing(bare=3)", Silence.NO_AGENT, "3 schedulers run there without pdctl's agent"),
    ],
)
def test_a_far_side_that_gives_no_ranks_is_one_row_with_the_reason(text: str, silence: Silence, why: str) -> None:
    [row] = opened(far(text))
    assert (row.identity.service, row.identity.tp, row.silent) == ("gpu1", -1, silence)
    assert why in row.silent_why


def test_a_program_that_is_not_there_is_said_to_be_missing_here() -> None:
    [row] = opened(Far("gpu1", ("/no/such/ssh", "gpu1")))
    assert "/no/such/ssh is not on this host's PATH" in row.silent_why


def test_one_that_hangs_holds_up_no_other_and_is_waited_for_once() -> None:
    hangs, good = (
        far("sys.stderr.write('Connecting'); sys.stderr.flush(); import time; time.sleep(600)", "a"),
        far("listing(rank('0')); ask()", "b"),
    )
    until(
        "b is there",
        lambda: [row.silent for row in opened(hangs, good, within_s=0.5)] == [Silence.TIMED_OUT, Silence.NONE],
    )
    rows = opened(hangs, Far("c", (sys.executable, "-c", "")), within_s=3600.0)
    assert "no answer in time" in rows[0].silent_why


@pytest.mark.parametrize("pumped", [False, True])
def test_a_list_that_comes_between_two_looks_is_used_by_the_second(tmp_path: Path, pumped: bool) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = far(
        f"told = ask().channel; open({str(gate)!r}).read()\n"
        "tell(Told(told, msgspec.msgpack.encode(Listing(ranks=(rank('0'),)))), MAGIC); ask(); ask()"
    )
    [row] = opened(slow, within_s=0.2)
    assert row.silent is Silence.TIMED_OUT
    gate.write_text("")
    assert select.select([bridges._pool["gpu1"].child], [], [], patience(30))[0]
    if pumped:  # as by questions to its ranks
        until("it is whole", lambda: bridges._pool["gpu1"].pump() or bridges._pool["gpu1"].listed)
    [row] = opened(slow)
    assert row.silent is Silence.NONE


def test_a_host_that_needs_longer_than_a_look_is_seen_at_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "_LATE_S", 0.01)
    slow = far(
        "import time\nfirst = MAGIC\n"
        "for n in range(9):\n"
        "    told = ask().channel\n"
        f"    while not os.path.exists({str(tmp_path / 'gate')!r} + str(n)): time.sleep(0.01)\n"
        "    tell(Told(told, msgspec.msgpack.encode(Listing(ranks=(rank('0'),)))), first); first = b''"
    )
    problems: list[str] = []
    assert [row.silent for row in opened(slow, within_s=0.05)] == [Silence.TIMED_OUT]
    for n in range(3):
        (tmp_path / f"gate{n}").touch()
        until("the list is here", lambda: bridges._pool["gpu1"].pump() or bridges._pool["gpu1"].listed)
        assert [row.silent for row in opened(slow, problems=problems)] == [Silence.NONE]
        assert len(problems) == n + 1
    assert "gpu1: its list of ranks is " in problems[0]
    monkeypatch.setattr(bridge_near, "KEPT_S", 0.0)
    assert [row.silent for row in opened(slow)] == [Silence.TIMED_OUT], "a list is used again for a while only"


def test_those_that_were_late_keep_nobody_from_being_asked() -> None:
    hangs, good = far("import time; time.sleep(600)", "a"), far("listing(rank('0')); ask()", "b")
    opened(hangs, within_s=0.05)
    rows = open_all([hangs, good], time.monotonic() + patience(30), [], at_once=1)
    assert [row.silent for row in rows] == [Silence.TIMED_OUT, Silence.NONE]


def test_one_that_is_silent_for_long_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    side = far("listing(rank('0')); ask(); ask()")
    opened(side)
    first = bridges._pool["gpu1"].child
    monkeypatch.setattr(bridge_near, "GONE_S", 0.0)
    assert [row.silent for row in opened(side, within_s=0.05)] == [Silence.NONE], "by its last list"
    monkeypatch.setattr(bridge_near, "GONE_S", 600.0)
    monkeypatch.setattr(bridges, "_LATE_S", patience(30))
    assert [row.silent for row in opened(side)] == [Silence.NONE]
    assert bridges._pool["gpu1"].child is not first


def test_of_a_pod_that_is_gone_no_child_stays() -> None:
    opened(far("listing(rank('0'))", "pod/gone"))
    until("it has ended", lambda: bridges._pool["pod/gone"].over)
    opened(far("listing(rank('0')); ask()", "pod/new"))
    assert len(children._running) == 1


def test_a_look_with_another_time_limit_asks_over_the_same_ssh() -> None:
    again = "tell(Told(ask().channel, msgspec.msgpack.encode(Listing(ranks=(rank('0'),)))))"
    side = far(f"listing(rank('0')); {again}; ask()")
    opened(side)
    first = bridges._pool["gpu1"].child
    opened(Far("gpu1", (*side.argv, "-o", "ConnectTimeout=5")))
    assert bridges._pool["gpu1"].child is first


def test_a_login_may_print_something_first() -> None:
    problems: list[str] = []
    [row] = opened(
        far("os.write(1, b'Welcome!\\n'); listing(rank('1'), problems=('a file is odd',))"), problems=problems
    )
    assert (row.via, row.far_key, row.identity.tp, row.silent) == ("gpu1", "1", 1, Silence.NONE)
    assert problems == ["gpu1: a file is odd"]


ANSWERS = """
listing(rank('0'), rank('1'), rank('2'), rank('3'))
asks = [ask() for _ in range(4)]
for one in reversed(asks):
    number = wire.decode_request(one.payload).id
    if one.key == '0':
        tell(Told(one.channel, b'', 'dead', 'process has ended'))
    elif one.key == '1':
        tell(Told(one.channel, wire.encode(wire.Reply(id=number, error='no such thing\\nlook elsewhere', code=5))))
    elif one.key == '2':
        tell(Told(one.channel, wire.encode(wire.Reply(id=number, body=msgspec.Raw(wire.encode(f'waits {one.wait_s > 0}'))))))
for one in [ask()]:
    number = wire.decode_request(one.payload).id
    tell(Told(one.channel, wire.encode(wire.Reply(id=number, body=msgspec.Raw(wire.encode('again'))))))
ask()
"""


def test_answers_come_in_any_order_and_silence_has_the_far_sides_reason() -> None:
    found = opened(far(ANSWERS))
    with Client(timeout_s=patience(60), rank_timeout_s=patience(0.5)) as client:
        dead, error, good, none = client.ask(found, "status", str)
        assert (dead.silence, dead.reason) == (Silence.DEAD, "process has ended")
        assert (error.silence, error.reason, error.next_step, error.code) == (
            Silence.ERROR, "no such thing", "look elsewhere", 5,
        )  # fmt: skip
        assert good.body == "waits True"
        assert none.silence is Silence.TIMED_OUT
        [again] = client.ask(found[2:3], "status", str)
        assert again.body == "again"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("os._exit(3)", "its bridge ended: it ended with exit code 3"),
        ("os.write(1, b'\\xff' * 64)", "what it sends can't be read"),
        ("tell(Told(one.channel, b'x' * (3 << 20)))", "bytes"),
        ("[tell(Told(one.channel, b'\\0')) for _ in range(3)]", "can't be read"),
        ("tell(Told(-1))", "an answer came that nobody waits for"),
        ("tell(Told(77)); tell(Told(77))", "an answer came that nobody waits for"),
    ],
)
def test_a_far_side_that_breaks_answers_with_a_reason(told: str, why: str) -> None:
    [rank] = opened(far(f"listing(rank('0'))\none = ask()\n{told}\nask()"))
    with Client(timeout_s=patience(60), rank_timeout_s=patience(20)) as client:
        [answer] = client.ask([rank], "status", str)
        assert answer.body is None
        assert why in answer.reason


STAYS = "trap '' TERM; printf '\\n%%pdctl-bridge-1%%\\n\\377\\377\\377\\377'; sleep 600; sleep 600"


def test_far_sides_that_send_garbage_and_stay_are_ended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes half a second to end. Where one is closed, none of the others is still served."""
    served: list[int] = []
    end = children.end

    def ended(some: Collection[Child]) -> None:
        served.append(sum(not one.ended for one in children._running if one not in some))
        end(some)

    monkeypatch.setattr(children, "end", ended)
    rows = opened(*(Far(f"bad{n}", ("sh", "-c", STAYS)) for n in range(4)), far("listing(rank('0')); ask()", "good"))
    assert [row.silent for row in rows] == [Silence.GARBAGE] * 4 + [Silence.NONE]
    assert set(served) <= {1}, "each wait is for all that are to end, beside the good one"
    assert len(children._running) == 1


def test_one_that_ends_its_output_and_stays_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = bridges._bridge(Far("gpu1", ("sh", "-c", "exec >&-; sleep 600")))
    bridge.ask_listing()
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the others wait"))

    def said() -> str:
        try:
            return str(bridge.listing() or "")
        except bridges.Answered as error:
            return str(error)

    while not (why := said()):
        select.select([bridge.child], [], [], 0.01)
    assert "no answer in time" in why


def test_one_that_has_ended_is_begun_anew_by_the_next_look(tmp_path: Path) -> None:
    count = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
    side = far(f"{count}\nlisting(rank('0'))")
    assert [row.silent for row in opened(side)] == [Silence.NONE]
    until("it has ended", lambda: bridges._pool["gpu1"].child.exit_code is not None)
    with Client(timeout_s=patience(60), rank_timeout_s=patience(20)) as client:
        [answer] = client.ask(opened(side), "status", str)
    assert answer.body is None
    assert (tmp_path / "starts").read_text().startswith("xx")


def test_no_password_is_asked_for_and_a_host_is_no_option() -> None:
    from pdctl.targets.places import parse_places

    [plain] = hosts.fars(parse_places({"PDCTL_HOSTS": "gpu1"}), 5.0)
    assert plain.argv[:1] == ("ssh",)
    assert "BatchMode=yes" in plain.argv
    assert plain.argv[-4:] == ("--", "gpu1", "pdctl", "bridge")
    [srun] = hosts.fars(parse_places({"PDCTL_HOSTS": "gpu1", "PDCTL_VIA": "srun -w {host} --overlap pdctl"}), 5.0)
    assert srun.argv == ("srun", "-w", "gpu1", "--overlap", "pdctl", "bridge")
    assert "ssh gpu1 true" in plain.explain(255, "ssh: Permission denied (publickey).")


def test_the_magic_is_on_a_line_of_its_own() -> None:
    assert MAGIC.startswith(b"\n")
    assert MAGIC.endswith(b"\n")
