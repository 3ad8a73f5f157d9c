"""The gateway answers a comparison from the file of its rank, and leaves it to the rank where it can't."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.gateway import rounds
from pdctl.gateway.rounds import OP, Rounds
from pdctl.protocol import wire
from pdctl.recording.excerpt import Part, Wanted, opened
from pdctl.recording.reader import read
from tests.unit.agent.test_tap_recording import Engine, Request


@pytest.fixture
def path(tmp_path: Path) -> Path:
    engine = Engine(tmp_path / "x.pdrec")
    engine.queue = [Request(5, 1)]
    engine.turn([3], [3], {5})
    return tmp_path / "x.pdrec"


def asked(**args: Any) -> wire.Request:
    return wire.decode_request(wire.encode(wire.Request(OP, id=7, args=args)))


def of(path: Path, **other: int) -> Rounds:
    recording = read(path)
    return Rounds(str(path), other.get("pid", recording.pid), recording.proc_start)


def test_it_answers_from_the_file(path: Path) -> None:
    raw = of(path).answer(asked(**msgspec.to_builtins(Wanted(newest=1))))
    assert raw is not None
    reply = wire.decode_reply(raw)
    assert reply.id == 7
    excerpt = opened(msgspec.msgpack.decode(reply.body, type=Part), read(path).identity)
    assert excerpt is not None
    assert excerpt.recording.streams[0].runs == read(path).streams[0].runs


@pytest.mark.parametrize(
    "args",
    [
        {"newest": -1}, {"newest": "all"}, {"cuts": {0: list(range(100))}}, {"cuts": {0: [-1]}}, {"rooms": [0] * 5000},
        {"more": 1}, {"kinds": [300]}, {"lists": {0: [1 << 63]}}, {"cuts": {"a": [1]}},
        {"rids": ["x" * 73]}, {"slots": [-1]}, {"runs": [300]},
    ],
)  # fmt: skip
def test_a_question_that_is_none_is_refused(path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        of(path).answer(asked(**args))


def test_where_the_file_is_not_to_be_had_the_rank_is_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked(newest=1)
    assert Rounds("", 1, 1).answer(question) is None
    assert of(path, pid=1).answer(question) is None  # another process's
    monkeypatch.setattr(rounds, "MAX_SIZE", 1000)
    assert of(path).answer(question) is None
    monkeypatch.undo()
    one = of(path)
    path.unlink()
    assert one.answer(question) is None
    path.write_bytes(b"no recording")
    assert one.answer(question) is None


def test_an_answer_loads_no_more_of_numpy_than_numpy_itself(path: Path) -> None:
    recording = read(path)
    args = {"newest": 1, "held": [60, 4000], "foreign": 60, "rooms": [5], "seen": True}
    program = f"""
import sys, numpy
before = set(sys.modules)
from pdctl.gateway.rounds import OP, Rounds
from pdctl.protocol import wire
assert Rounds({str(path)!r}, {recording.pid}, {recording.proc_start}).answer(wire.Request(OP, args={args}))
print(sorted({{"numpy.ma", "tempfile"}} & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
