"""The flight recorder's dump is cut down to the last collectives of each group."""

from __future__ import annotations

import json

import pytest

from pdctl.agent.flight import last_entries, reduce


def entry(pg: int, seq: int, created: int, **changes: object) -> dict[str, object]:
    """An entry as torch 2.13 writes it for a Gloo group, fields it does not need included."""
    return {
        "collective_seq_id": seq, "input_dtypes": ["Byte"], "input_sizes": [[7]], "is_p2p": False, "op_id": seq,
        "output_dtypes": ["Byte"], "output_sizes": [[7]], "p2p_seq_id": 0, "pg_id": pg,
        "process_group": [str(pg), f"name {pg}"], "profiling_name": "gloo:all_reduce", "record_id": created,
        "retired": True, "state": "scheduled", "thread_id": "1", "thread_name": "python", "time_created_ns": created,
        "time_discovered_completed_ns": 0, "time_discovered_started_ns": 0, "timeout_ms": 1800000, **changes,
    }  # fmt: skip


def dump(*entries: dict[str, object]) -> bytes:
    return json.dumps({"comm_lib_version": "", "entries": entries, "pg_config": {}, "version": "2.10"}).encode()


def test_the_last_of_each_group_in_the_order_they_began() -> None:
    entries = [entry(0, n, 10 * n) for n in range(20)] + [entry(1, n, 10 * n + 5) for n in range(3)]
    got = reduce(dump(*entries), 2)
    assert [(e.pg_id, e.seq) for e in got] == [(1, 1), (1, 2), (0, 18), (0, 19)]


def test_what_an_entry_says() -> None:
    [got] = reduce(dump(entry(1, 4, 9, retired=False)), 8)
    assert (got.op, got.backend, got.pg_name, got.sizes, got.retired) == (
        "all_reduce",
        "gloo",
        "name 1",
        ((7,),),
        False,
    )


def test_point_to_point_counts_by_its_own_numbers() -> None:
    [got] = reduce(dump(entry(1, 4, 9, is_p2p=True, p2p_seq_id=33, profiling_name="gloo:recv 0<-1")), 8)
    assert (got.seq, got.op) == (33, "recv 0<-1")


def test_fields_that_a_torch_does_not_write_are_unknown_not_fatal() -> None:
    [got] = reduce(b'{"entries": [{"pg_id": 1}]}', 8)
    assert (got.seq, got.op, got.sizes) == (-1, "", ())
    assert reduce(b"{}", 8) == []


def test_another_format_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="object"):
        reduce(b"[]", 8)


def test_off_is_said_with_the_variable_that_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    monkeypatch.delenv("TORCH_NCCL_TRACE_BUFFER_SIZE", raising=False)
    with pytest.raises(LookupError, match="TORCH_FR_BUFFER_SIZE"):
        last_entries()
