"""``dump queues`` in 80 columns: what requests are called by is whole."""

from __future__ import annotations

import io

from rich.console import Console

from pdctl.probes.dump.model import QueuedRequest, QueuesDump, RankQueues
from pdctl.probes.dump.probe import QUEUES
from tests.support.drawing import drawing

ROOM, RID = 18446744073709551615, "0123456789abcdef0123456789abcdef-17"


def test_room_and_rid_are_not_cut() -> None:
    request = QueuedRequest(
        rank="decode dp0 pp0 tp0", cluster="", service="s", queue="decode.transfer", room=ROOM, rid=RID, slot=3,
        state="WaitingForInput", age_s=93.4, tokens=1024, kv=1024, dp=1,
    )  # fmt: skip
    rank = RankQueues(rank="decode dp0 pp0 tp0", cluster="", service="s", state="live")
    text = io.StringIO()
    drawing(QUEUES)(QueuesDump(ranks=(rank,), requests=(request,)), Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text.getvalue()
    head = next(line for line in lines if "room" in line)
    room, rid = (head.index(name) for name in ("room", "rid"))
    slot = head.index("slot")
    rows = lines[lines.index(head) + 1 :]
    assert "".join(line[room:rid].strip() for line in rows) == str(ROOM)
    assert "".join(line[rid:slot].strip() for line in rows) == RID
