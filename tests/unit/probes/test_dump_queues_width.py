"""``dump queues`` in 80 columns: what requests are called by is whole, in one piece, and can be copied."""

from __future__ import annotations

import io

from pdctl.probes.dump.model import QueuedRequest, QueuesDump, RankQueues
from pdctl.probes.dump.probe import QUEUES
from pdctl.report.drawing import Sheet
from tests.support.drawing import drawing

ROOM, RID = 18446744073709551615, "0123456789abcdef0123456789abcdef-17"


def test_room_and_rid_are_not_cut() -> None:
    request = QueuedRequest(
        rank="decode dp0 pp0 tp0", cluster="", service="s", queue="decode.transfer", room=ROOM, rid=RID, slot=3,
        state="WaitingForInput", age_s=93.4, tokens=1024, kv=1024, dp=1,
    )  # fmt: skip
    rank = RankQueues(rank="decode dp0 pp0 tp0", cluster="", service="s", state="live")
    text = io.StringIO()
    drawing(QUEUES)(QueuesDump(ranks=(rank,), requests=(request,)), Sheet(file=text, width=80))
    assert "…" not in text.getvalue()
    [line] = [line for line in text.getvalue().splitlines() if "decode.transfer" in line]
    assert line.split()[1:3] == [str(ROOM), RID]


def test_a_very_long_rid_goes_on_in_the_next_line() -> None:
    text = io.StringIO()
    request = QueuedRequest(
        rank="r", cluster="", service="s", queue="waiting", room=1, rid="x" * 200, slot=-1, state="-", age_s=None
    )
    rank = RankQueues(rank="r", cluster="", service="s", state="live")
    drawing(QUEUES)(QueuesDump(ranks=(rank,), requests=(request,)), Sheet(file=text, width=80))
    assert text.getvalue().count("x") == 200
    assert max(map(len, text.getvalue().splitlines())) < 120
