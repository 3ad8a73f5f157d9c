"""Whose room is in a slot: every verdict with the state next to it that is not one."""

from __future__ import annotations

import pytest

from pdctl.probes.metadata.judge import judge
from pdctl.probes.metadata.model import History, MetadataDocument, Mismatch, RankRows, WrongKV
from pdctl.probes.metadata.slots import odd
from pdctl.protocol.metadata import Holder, Metadata, SlotRow, Tensor
from pdctl.protocol.model import Action, KVPoll
from tests.support.identities import identity

NOW = 1000.0
TRANSFERRING, SUCCESS = int(KVPoll.TRANSFERRING), int(KVPoll.SUCCESS)


def holder(room: int, slot: int, state: int = TRANSFERRING, where: str = "decode.transfer") -> Holder:
    return Holder(room, f"r{room}", slot, where, state)


def body(
    *rows: tuple[int, int],
    held: tuple[Holder, ...] = (),
    gate: bool | None = True,
    zeroed: bool | None = True,
    device: str = "cpu",
    aux: str = "rdma",
    not_read: str = "",
) -> Metadata:
    """A rank's answer: rows are (slot, found)."""
    taken = {h.slot for h in held}
    return Metadata(
        mono_ns=10**9,
        ticks=1,
        device=device,
        tensors=(Tensor("bootstrap_room", "uint64", 64),),
        aux=aux,
        aux_why="test",
        gate=gate,
        zeroed=zeroed,
        slots=16,
        holders=list(held),
        rows=[SlotRow(s, found, 1.0 if s in taken else 0.0, 7 if s in taken else 0, (0xABC,)) for s, found in rows],
        not_read=not_read,
    )


def rank(answer: Metadata | None, *, again: bool = True, history: History | None = None, **who: object) -> RankRows:
    past = History(whole=True) if history is None else history
    return RankRows(
        identity(tp_size=2, **who),
        "live",
        silence="" if answer is not None else "timed out",
        body=answer,
        again=answer if again else None,
        history=past,
    )


def look(*views: RankRows) -> MetadataDocument:
    return judge(views, now_s=NOW)


def codes(document: MetadataDocument) -> list[str]:
    return [found.code for found in document.findings]


def test_landed_not_written_and_free_are_no_findings() -> None:
    document = look(rank(body((0, 70), (1, 0), (2, 5), held=(holder(70, 0, SUCCESS), holder(71, 1)))))
    assert [(s.slot, s.verdict, s.expected, s.found) for s in document.slots] == [
        (0, "landed", 70, 70),
        (1, "not written", 71, 0),
        (2, "free", 0, 5),
    ]
    assert document.slots[2].text == "keeps room 5"
    assert not document.findings
    assert not document.partial
    assert document.slots[0].sums == {"bootstrap_room": "00000abc"}


def test_a_stale_room_is_a_finding_once_its_owner_is_about_to_be_taken_over() -> None:
    past = History(whole=True, rooms={5, 70}, owners={3: [5, 70]}, ended={5: NOW - 12.0})
    still_moving = look(rank(body((3, 5), held=(holder(70, 3),)), history=past))
    [slot] = still_moving.slots
    assert (slot.verdict, slot.text) == ("stale owner", "room 5 owned this slot before; it ended 12.0 s ago")
    assert not still_moving.findings
    document = look(rank(body((3, 5), held=(holder(70, 3, SUCCESS),)), history=past))
    assert codes(document) == ["PD131"]
    [found] = document.findings
    assert found.rooms == (70, 5)
    assert "slot 3 on decode dp0 pp0 tp0 belongs to room 70" in found.summary


def test_a_room_whose_transfer_is_over_is_stale_even_while_it_runs() -> None:
    held = (holder(70, 3, SUCCESS), holder(5, -1, 255, "running"))
    document = look(rank(body((3, 5), held=held), history=History(whole=True, rooms={5})))
    assert document.slots[0].verdict == "stale owner"


def test_a_room_that_waits_for_its_own_slot_is_a_collision() -> None:
    held = (holder(70, 3), holder(71, 4))
    document = look(rank(body((3, 71), (4, 0), held=held), history=History(whole=True, rooms={70, 71})))
    assert codes(document) == ["PD132"]
    assert document.slots[0].text == "room 71 is in decode.transfer with slot 4"
    # The same room, retried: it owned this very slot before, so what is there is old.
    retried = History(whole=True, rooms={70, 71}, owners={3: [71, 70]})
    assert not look(rank(body((3, 71), (4, 0), held=held), history=retried)).findings


def test_two_owners_of_one_slot_collide_and_one_in_two_places_does_not() -> None:
    assert codes(look(rank(body((3, 70), held=(holder(70, 3), holder(71, 3)))))) == ["PD132"]
    twice = (holder(70, 3), Holder(70, "r70", 3, "chunked_req", 255))
    assert not look(rank(body((3, 70), held=twice))).findings


def test_a_room_never_seen_is_foreign_only_where_the_recording_reaches_back() -> None:
    owned = body((3, 99), held=(holder(70, 3),))
    document = look(rank(owned))
    assert codes(document) == ["PD133"]
    assert "room 99 was never on this rank" in document.findings[0].summary
    cut = look(rank(owned, history=History(whole=False)))
    assert not cut.findings
    assert cut.slots[0].verdict == "another room"
    other = rank(body(), history=History(whole=True, rooms={99}), dp=1, service="other")
    document = look(rank(owned), other)
    assert document.slots[0].text == "room 99 was never on this rank; decode dp1 pp0 tp0 knows it"
    # Known here, but not how it ended, since the recording begins later: no collision either.
    begun_later = History(whole=False, rooms={99, 70})
    assert not look(rank(owned, history=begun_later)).findings
    assert codes(look(rank(owned, history=History(whole=True, rooms={99, 70})))) == ["PD132"]


def test_what_a_second_look_does_not_confirm_is_no_finding() -> None:
    first = body((3, 99), held=(holder(70, 3),))
    assert odd(rank(first)) == [3]
    for later in (body((3, 0), held=(holder(70, 3),)), body((3, 99), held=(holder(72, 3),)), body((3, 99))):
        view = RankRows(identity(tp_size=2), "live", body=first, again=later, history=History(whole=True))
        assert not look(view).findings


def test_a_slot_that_was_not_read_a_second_time_is_said_to_be_so() -> None:
    first = body((3, 99), held=(holder(70, 3),))
    document = look(
        RankRows(identity(tp_size=2), "live", body=first, unconfirmed="no time left", history=History(whole=True))
    )
    assert (document.findings, document.partial) == ((), True)
    [problem] = document.problems
    assert problem.endswith("slots that seem wrong were not read a second time: no time left")


def test_prefill_fills_its_own_rows_and_never_clears_them() -> None:
    held = (holder(70, 0, where="prefill.inflight"), holder(71, 1, where="waiting"))
    document = look(rank(body((0, 70), (1, 5), held=held, gate=None, zeroed=None), role="prefill"))
    assert [s.verdict for s in document.slots] == ["filled", "not filled"]
    assert document.ranks[0].safe == "-"
    assert not document.findings


@pytest.mark.parametrize(
    ("found", "owners", "code", "word"),
    [(5, {3: [5, 70]}, "PD131", "Stale owner"), (99, {3: [70]}, "PD133", "Foreign room")],
)
def test_a_recorded_decision_with_another_room_in_the_slot(
    found: int, owners: dict[int, list[int]], code: str, word: str
) -> None:
    wrong = Mismatch(3, 70, found, int(Action.ABORTED), NOW - 4.0)
    past = History(whole=True, rooms={70, 5}, owners=owners, mismatches=[wrong], faults={70: "corrupt-room"})
    document = look(rank(None, history=past))
    assert codes(document) == [code]
    assert "the rank aborted it 4.0 s ago" in document.findings[0].summary
    assert word in document.findings[0].summary
    assert "pdctl's fault corrupt-room fired on room 70" in document.findings[0].evidence
    assert document.partial
    old = History(whole=True, mismatches=[Mismatch(3, 70, found, int(Action.ABORTED), NOW - 4000.0)])
    assert not look(rank(None, history=old)).findings


def test_kv_that_its_checksum_says_is_wrong_is_told_by_room_and_rank() -> None:
    wrong = History(whole=True, wrong_kv={70: WrongKV(70, NOW - 4.0, here=True)}, faults={70: "delay-metadata"})
    heard = History(whole=True, wrong_kv={70: WrongKV(70, NOW - 4.0, here=False)})
    document = look(rank(body(), history=heard), rank(body(), history=wrong, tp=1))
    [found] = document.findings
    assert (found.code, found.rooms, found.ranks) == ("PD138", (70,), ("decode dp0 pp0 tp1",))
    assert "The KV of room 70 was not what prefill sent on decode dp0 pp0 tp1" in found.summary
    assert "dropped it, 4.0 s ago" in found.summary
    assert "decode dp0 pp0 tp0: room 70 wrong on another rank of its group, 4.0 s ago" in found.evidence
    assert "pdctl's fault delay-metadata fired on room 70" in found.evidence
    assert found.units == (identity(tp_size=2).unit,)
    assert not document.partial
    [found] = look(rank(body(), history=heard)).findings
    assert "on a rank of the group of decode dp0 pp0 tp0" in found.summary


def test_requests_of_one_server_with_wrong_kv_are_one_finding_and_old_ones_none() -> None:
    many = {room: WrongKV(room, NOW - 100.0 + room, here=True) for room in (71, 72, 73, 74)}
    [found] = look(rank(body(), history=History(wrong_kv=many))).findings
    assert "4 requests (rooms 74, 73, 72 and 1 more)" in found.summary
    assert "the last one 26.0 s ago" in found.summary
    assert not look(rank(body(), history=History(wrong_kv={7: WrongKV(7, NOW - 901.0, here=True)}))).findings


def test_times_come_from_both_sides_recordings() -> None:
    decode = rank(
        body((3, 70), held=(holder(70, 3),)), history=History(whole=True, landed={(3, 70): (NOW - 2.0, 1.5)}), tp=1
    )
    prefill = RankRows(
        identity(role="prefill", service="prefill"), "live", "not asked", history=History(sent={(70, 3, 1): NOW - 2.5})
    )
    [slot] = look(decode, prefill).slots
    assert (slot.sent_s, slot.landed_s, slot.late_s) == (2.5, 2.0, 1.5)


@pytest.mark.parametrize(
    ("how", "safe", "finds"),
    [
        ({"gate": False, "zeroed": False, "device": "cuda:0"}, "no", ["PD130"]),
        ({"gate": True, "zeroed": True, "device": "cuda:0"}, "yes", []),
        ({"gate": False, "zeroed": False, "device": "cuda:0", "aux": "tcp"}, "partly", []),
        ({"gate": False, "zeroed": False}, "partly", []),
        ({"gate": False, "zeroed": False, "aux": ""}, "unknown", []),
        ({"gate": True, "zeroed": True}, "yes", []),
    ],
)
def test_whether_this_version_makes_the_way_of_the_rows_safe(
    how: dict[str, object], safe: str, finds: list[str]
) -> None:
    document = look(rank(body(**how)))  # type: ignore[arg-type]
    assert (document.ranks[0].safe, codes(document)) == (safe, finds)
    alone = RankRows(identity(), "live", body=body(**how), history=History())  # type: ignore[arg-type]
    assert judge([alone], now_s=NOW).ranks[0].safe != "no"


def test_a_silent_rank_has_a_row_and_the_reason() -> None:
    document = look(rank(None))
    assert document.ranks[0].silence == "timed out"
    assert document.problems == ("decode dp0 pp0 tp0: timed out",)
