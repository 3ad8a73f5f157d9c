"""Requests by columns: what goes in comes out, and damage is told."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.model import QUEUES
from pdctl.protocol.requests import RoomEntry, RoomTable

SECONDS = st.one_of(st.just(-1.0), st.floats(0, 1e9))
COUNT = st.integers(-1, 2**40)
ENTRIES = st.lists(
    st.builds(
        RoomEntry,
        queue=st.sampled_from(QUEUES),
        room=st.integers(0, 2**64 - 1),
        rid=st.text(max_size=20),
        slot=st.integers(-1, 2**31 - 1),
        state=st.integers(0, 255),
        age_s=SECONDS,
        clock_s=SECONDS,
        tokens=COUNT,
        kv=COUNT,
        dp=st.integers(-1, 2**15 - 1),
        bootstrap=st.sampled_from(["", "10.0.0.1:8998", "[::1]:8998"]),
        pinned=st.integers(-1, 2**15 - 1),
    ),
    max_size=8,
)


@given(ENTRIES)
def test_entries_come_back_over_the_wire(entries: list[RoomEntry]) -> None:
    table = msgspec.msgpack.decode(msgspec.msgpack.encode(RoomTable.of(entries)), type=RoomTable)
    assert list(table) == entries
    assert len(table) == len(entries)
    assert table.column("bootstrap") == [entry.bootstrap for entry in entries]
    assert table.distinct("queue") == list(dict.fromkeys(entry.queue for entry in entries))
    assert list(table.rows("room", "rid")) == [(entry.room, entry.rid) for entry in entries]


@given(ENTRIES, ENTRIES)
def test_keys_are_equal_where_the_fields_are(one: list[RoomEntry], other: list[RoomEntry]) -> None:
    def said(entries: list[RoomEntry]) -> list[tuple[int, str, int]]:
        return [(entry.room, entry.rid, entry.state) for entry in entries]

    same = RoomTable.of(one).key("room", "rid", "state") == RoomTable.of(other).key("room", "rid", "state")
    assert same == (said(one) == said(other))
    older = [msgspec.structs.replace(entry, age_s=7.5) for entry in one]
    fields = [field for field in RoomEntry.__struct_fields__ if field != "age_s"]
    assert RoomTable.of(one).key(*fields) == RoomTable.of(older).key(*fields)


@dataclass
class Damage:
    """How a table is spoiled."""

    field: str
    data: bytes


@pytest.mark.parametrize("damage", [Damage("room", b"1234567"), Damage("state", b"12"), Damage("age_s", b"")])
def test_columns_of_different_length_are_refused(damage: Damage) -> None:
    table = RoomTable.of([RoomEntry("waiting", 7, "r7")])
    spoiled = [damage.data if name == damage.field else getattr(table, name) for name in RoomTable.__struct_fields__]
    with pytest.raises(msgspec.ValidationError, match="of another length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(spoiled), type=RoomTable)
