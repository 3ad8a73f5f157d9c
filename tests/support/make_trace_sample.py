"""Makes tests/data/version-1.pdtrace. Not run by tests: that file stays as the pdctl of its time wrote it.

python -m tests.support.make_trace_sample
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from pdctl.protocol.model import EventKind
from pdctl.trace import manifest
from pdctl.trace.redact import Names, redact
from pdctl.trace.writer import Member, member_of, write_trace
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request

SALT = "5a" * 16


def main() -> None:
    names = Names(SALT)
    target = Path(__file__).parents[1] / "data" / "version-1.pdtrace"
    target.parent.mkdir(exist_ok=True)
    members = []
    shapes = [("prefill", 0, 1), ("decode", 0, 2), ("decode", 1, 2)]
    for number, (role, tp, tp_size) in enumerate(shapes):
        who = msgspec.structs.replace(
            IDENTITY,
            role=role,
            tp=tp,
            tp_size=tp_size,
            pid=1000 + number,
            service=f"{role}@h:1",
            instance=f"{role}@h:1/1",
        )
        if number == 2:
            rank = manifest.TraceRank(
                rank=who.label,
                state="dead",
                kept="missing",
                identity=names.who(who),
                reason="no recording: it was killed before it made one",
            )
            members.append(Member(rank))
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.pdrec"
            engine = Engine(path)
            engine.writer.set_identity(msgspec.json.encode(who))
            engine.writer.event(EventKind.ENQUEUE, queue=4, room=7, slot=0, text="request-of-room-7")
            engine.queue = [Request(7, 0), Request(8, 1)]
            for _ in range(3):
                engine.turn([3, 3], [3, 3], set())
            engine.queue = [Request(8, 1)]
            engine.turn([4], [4], set())
            members.append(member_of(redact(path.read_bytes(), names), state="dead"))
    made = msgspec.structs.replace(manifest.new("made as a sample"), redacted=True, salt=SALT)
    clock = msgspec.structs.replace(made.clock, host=names.host("h"), boot="")
    write_trace(target, members, msgspec.structs.replace(made, clock=clock), force=True)


if __name__ == "__main__":
    main()
