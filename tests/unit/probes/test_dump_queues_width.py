"""``dump queues`` as text: what requests are called by is whole, in one piece, and can be copied; memory that is kept."""

from __future__ import annotations

import io

from pdctl.probes.dump.judge import queues_of
from pdctl.probes.dump.model import QueuedRequest, QueuesDump, RankQueues
from pdctl.probes.dump.probe import QUEUES
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import Deferred, Rooms, RoomTable, Space
from pdctl.report.drawing import Sheet
from tests.support.drawing import drawing
from tests.support.identities import identity

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


def test_memory_that_is_kept_for_prefill_is_a_row_with_its_acks_and_what_is_left() -> None:
    kept = Deferred(7, "r7", 3, 40, 12.0, 18.0, 1, 2), Deferred(8, "r8", 4, 40, 12.0, -1.0)
    rooms = Rooms(0, 0, RoomTable(), (), Space(), {}, {}, {}, deferred=kept)
    document = queues_of([Answer(FoundRank(identity(), "live"), rooms)])
    assert document.ranks[0].lengths == {"decode.deferred": 2}
    assert [(r.room, r.slot, r.acks, r.needed, r.left_s) for r in document.requests] == [
        (7, 3, 1, 2, 18.0),
        (8, 4, -1, -1, None),
    ]
    text = io.StringIO()
    drawing(QUEUES)(document, Sheet(file=text, width=120))
    assert "1 of 2 acks, 18.0 s left" in text.getvalue()
    assert "its receiver drains" in text.getvalue()
