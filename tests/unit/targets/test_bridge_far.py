"""The far side of a bridge: a host that asks others itself, and what is answered from a recording without its rank."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from pdctl.gateway.rounds import Rounds
from pdctl.protocol import wire
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.targets import bridges
from pdctl.targets.bridge_far import Side
from pdctl.targets.bridge_frames import LIST, QUESTION, Ask, Told
from pdctl.targets.bridges import Far, open_all
from pdctl.targets.client import Client
from tests.support.identities import identity
from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT

LEAF = f"""
import os, struct, sys
sys.path[:0] = [{str(ROOT)!r}]
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
if sys.argv[1] == "gone":
    sys.exit("it is down")
rank = lambda n: FarRank(str(n), identity(tp=n, pid=10 + n), "live", "ipc:///x", protocol=wire.PROTOCOL)
tell(Told(ask().channel, msgspec.msgpack.encode(Listing(ranks=(rank(0), rank(1))))), MAGIC)
for asked in sorted((ask(), ask()), key=lambda one: one.key):
    number = wire.decode_request(asked.payload).id
    if asked.key == "0":
        tell(Told(asked.channel, wire.encode(wire.Reply(id=number, body=msgspec.Raw(wire.encode(sys.argv[1]))))))
    else:
        tell(Told(asked.channel, b"", "dead", "process has ended"))
os.read(0, 1)
"""


def test_a_host_that_asks_others_passes_on_their_ranks_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = tmp_path / "leaf.py"
    leaf.write_text(LEAF)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PDCTL_HOSTS", "for,ever")  # of every host: what leads further is on the command line only
    head = (
        sys.executable,
        "-m",
        "pdctl.cli",
        "--hosts",
        "n1,gone",
        "--via",
        f"{sys.executable} {leaf} {{host}}",
        "bridge",
    )
    try:
        found = open_all([Far("head", head)], time.monotonic() + patience(30), [])
        rows = {rank.identity.service if rank.identity.tp < 0 else rank.identity.tp: rank for rank in found}
        assert set(rows) == {0, 1, "gone"}
        assert (rows["gone"].silent, "it is down" in rows["gone"].silent_why) == (Silence.REFUSED, True)
        with Client(timeout_s=patience(60), rank_timeout_s=patience(20)) as client:
            good, dead, gone = client.ask([rows[0], rows[1], rows["gone"]], "status", str)
        assert good.body == "n1"
        assert (dead.silence, dead.reason) == (Silence.DEAD, "process has ended")
        assert gone.silence is Silence.REFUSED
    finally:
        for bridge in bridges._pool.values():
            bridge.close()
        bridges._pool.clear()


def test_what_a_recording_tells_is_read_beside_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "1-1.pdrec"
    file.write_bytes(b"0123456789")
    monkeypatch.setattr(Rounds, "answer", lambda _, request: wire.encode(wire.Reply(id=request.id)))
    side = Side(-1, -1, dict(os.environ))
    side._ranks = {"k": FoundRank(identity(), "dead", recording=file, recording_size=10)}

    def told(op: str, **args: int) -> wire.Reply:
        asked = Ask(1, QUESTION, "k", 1.0, wire.encode(wire.Request(op, id=7, args=args)))
        reply = wire.decode_reply(side._answered(asked).payload)
        assert reply.id == 7
        return reply

    assert msgspec.msgpack.decode(told("recording", offset=2, length=3).body) == b"234"
    assert msgspec.msgpack.decode(told("recording", offset=8, length=1 << 40).body) == b"89"
    assert msgspec.msgpack.decode(told("recording", offset=99, length=5).body) == b""
    assert told("rounds").error == ""


def test_ranks_are_asked_while_the_next_list_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Event()
    told: list[int] = []
    side = Side(-1, -1, dict(os.environ))
    side._ranks = {"k": FoundRank(identity(), "dead")}
    monkeypatch.setattr(side, "_list", lambda ask: made.wait(patience(60)) and Told(ask.channel))
    monkeypatch.setattr(side, "_tell", lambda one: told.append(one.channel))
    side._take(Ask(-2, LIST))
    side._take(Ask(1, QUESTION, "k", 1.0, wire.encode(wire.Request("status", id=7))))
    until("the rank is answered for", lambda: told == [1])
    made.set()
    until("the list is there", lambda: told == [1, -2])
