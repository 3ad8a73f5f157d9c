"""Redaction takes names out of a recording, the same way everywhere, and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.probes.routing import facts
from pdctl.probes.story.find import known_rooms, meant
from pdctl.protocol.model import EventKind, GroupInfo
from pdctl.protocol.notes import AGENT_ENDED
from pdctl.recording import format as f
from pdctl.recording.reader import parse
from pdctl.recording.source import Source
from pdctl.recording.writer import RecordingWriter
from pdctl.trace import redact as module
from pdctl.trace.redact import Names, Redacted, redact
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request

HOST = "node17.cluster.example"
SALT = "00" * 16


def who(host: str = HOST) -> bytes:
    world = f"decode@{host}:30000/1a2b.77/dp0"
    return msgspec.json.encode(
        msgspec.structs.replace(
            IDENTITY,
            engine="sglang",
            host=host,
            service=f"decode@{host}:30000",
            instance=f"decode@{host}:30000/1a2b.77",
            world=world,
            groups=(GroupInfo("attn-tp", (0, 1), world),),
        )
    )


def with_events(tmp_path: Path, *events: tuple[EventKind, str]) -> bytes:
    engine = Engine(tmp_path / "a.pdrec")
    engine.queue = [Request(7, 0), Request(8, 1)]
    engine.turn([3, 4], [3, 4], set())
    engine.writer.set_identity(who())
    for number, (kind, text) in enumerate(events):
        engine.writer.event(kind, room=7 + number, text=text)
    return (tmp_path / "a.pdrec").read_bytes()


def texts(data: bytes) -> list[str]:
    return [event.text for event in parse(data).events()]


def test_names_go_and_all_else_stays(tmp_path: Path) -> None:
    data = with_events(
        tmp_path,
        (EventKind.ENQUEUE, "user-alice-request-1"),
        (EventKind.ABORT, "user-alice-request-1"),
        (EventKind.ABORT, "all requests"),
        (EventKind.DP_QUERY, f"{HOST}:8998"),
        (EventKind.FAILURE, f"Request user-alice-request-1 to {HOST} failed"),
        (EventKind.FAILURE, f"{facts.CONFLICT}: of {HOST}"),
        (EventKind.FAILURE, "KV checksum mismatch req=user-alice-request-1 expected=0x1 got=0x2"),
        (EventKind.FAILURE, "KV checksum mismatch on a peer rank req=user-alice-request-1"),
        (EventKind.NOTE, f"{AGENT_ENDED}: no route to {HOST}"),
        (EventKind.FAULT_ARMED, "delay-metadata"),
        (EventKind.NOTE, "delay-metadata released"),
    )
    names = Names(SALT)
    clean = redact(data, names)
    piecewise = Redacted(Source(data), names)
    for step in (1_000, 4_096 + 17, len(data)):  # whatever is read at once, also half a record
        assert b"".join(piecewise.read(at, step) for at in range(0, len(data), step)) == clean
    assert len(clean) == len(data)
    for secret in (b"alice", HOST.encode(), b"node17"):
        assert secret in data
        assert secret not in clean
    rid, abort, every, address, failed, conflict, wrong, elsewhere, note, fault, released = texts(clean)
    assert rid == abort == names.rid("user-alice-request-1")
    assert every == "all requests"
    assert address == f"{names.host(HOST)}:8998"
    assert failed.startswith("text-")
    assert conflict.startswith(facts.CONFLICT)
    assert wrong.startswith("KV checksum mismatch text-")
    assert elsewhere.startswith("KV checksum mismatch on a peer rank text-")
    assert note.startswith(f"{AGENT_ENDED}: text-")
    assert (fault, released) == ("delay-metadata", "delay-metadata released")
    before, after = parse(data), parse(clean)
    assert after.problems == []
    assert after.identity.host == names.host(HOST)
    assert after.identity.service == f"decode@{names.host(HOST)}:30000"
    assert after.identity.groups[0].world == after.identity.world
    assert [e.room for e in after.events()] == [e.room for e in before.events()]
    rings = slice(f.RINGS_OFFSET, f.layout(len(data))[4])
    assert clean[rings] == data[rings]
    assert clean[: f.IDENTITY_OFFSET_FIELDS] == data[: f.IDENTITY_OFFSET_FIELDS]


def test_what_is_looked_for_by_its_text_is_what_others_look_for() -> None:
    assert module.CONFLICT == facts.CONFLICT


def test_a_request_is_found_by_its_real_id(tmp_path: Path) -> None:
    for rid in ("some-rid", "a very long request id " * 5, "ünïcödé" * 12):
        (tmp_path / "a.pdrec").unlink(missing_ok=True)
        recording = parse(redact(with_events(tmp_path, (EventKind.ENQUEUE, rid)), Names(SALT)))
        known = known_rooms([recording])
        assert meant(rid, known, [recording], hashed=[Names(SALT).rid(rid)]) == [7]
        assert meant(rid, known, [recording]) == []
        assert meant(rid, known, [recording], hashed=[Names("11" * 16).rid(rid)]) == []


def test_two_ranks_keep_their_common_group() -> None:
    names = Names(SALT)
    one, two = (msgspec.json.decode(names.identity(who()), type=type(IDENTITY)) for _ in range(2))
    assert one.groups[0].key == two.groups[0].key
    assert msgspec.json.decode(names.identity(who("other")), type=type(IDENTITY)).groups[0].key != one.groups[0].key


def test_a_labs_name_is_no_host() -> None:
    names = Names(SALT)
    lab = msgspec.structs.replace(IDENTITY, engine="lab", service="decode@lab:mine", world="decode@lab:mine/1.2/dp0")
    assert (names.who(lab).service, names.who(lab).world) == (lab.service, lab.world)


def test_an_event_that_was_being_written_is_blanked(tmp_path: Path) -> None:
    data = bytearray(with_events(tmp_path, (EventKind.ENQUEUE, "user-alice-1"), (EventKind.ENQUEUE, "user-alice-2")))
    data[f.layout(len(data))[4] + 60] ^= 1
    clean = redact(bytes(data), Names(SALT))
    assert b"alice" not in clean
    assert texts(clean) == [Names(SALT).rid("user-alice-2")]


def test_reasons_lose_hosts_and_directories() -> None:
    names = Names(SALT, ["node17", "n", ""])
    said = names.words("/home/alice/rec/1-2.pdrec: on node17: n, not node170, in my-node17")
    assert said == f"1-2.pdrec: on {names.host('node17')}: {names.host('n')}, not node170, in my-{names.host('node17')}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("open file:///home/alice/ckpt/x, file://localhost/home/bob/y", "open x, y"),
        ("/home//alice/x and '//srv/alice//y'", "x and 'y'"),
        ("hf3fs:////mnt/alice/.ckpt", "hf3fs://.ckpt"),
        ("http://localhost:80/v1/models", "http://localhost:80/v1/models"),
    ],
)
def test_directories_go_however_they_are_written(text: str, kept: str) -> None:
    assert Names(SALT).words(text) == kept


def test_a_host_that_looks_like_a_hash_is_hashed() -> None:
    host = "host-10000001"
    clean = Names(SALT).identity(who(host))
    assert host.encode() not in clean
    names = Names(SALT, [f"{host}.example.org"])
    assert host not in names.words(f"{host}: no answer; decode@{host}:1 and {host}.example.org")
    assert names.words(names.words(host)) == names.words(host)
    assert names.host("host-deadbeef") == "host-deadbeef"


@pytest.mark.parametrize("service", ["tcp://alpha:7311", "tcp://[fd00::7]:7311", "pod/alpha", "bob@alpha", "alpha"])
def test_a_rank_of_which_only_its_way_is_known_has_no_name(service: str) -> None:
    unknown = msgspec.structs.replace(IDENTITY, role="unknown", host="", service=service, instance="", world="")
    made = Names(SALT).who(unknown).service
    assert not [name for name in ("alpha", "bob", "fd00") if name in made]
    assert Names(SALT).host("[fd00::7]" if "fd00" in service else "alpha") in made


@pytest.mark.parametrize(
    ("one", "other"),
    [("GPU-07", "gpu-07"), ("gpu-07.", "gpu-07"), ("[fd00::7]", "FD00:0::7"), ("::ffff:10.1.2.3", "10.1.2.3")],
)
def test_one_host_has_one_hash_however_it_is_written(one: str, other: str) -> None:
    names = Names(SALT)
    assert names.host(one) == names.host(other) != names.host("another")
    assert names.host("gpu-07.cluster.example").startswith(f"{names.host('gpu-07')}.")
    assert names.host("gpu-07.cluster.example") != names.host("gpu-07.other.example")
    assert names.host(names.host(one)) == names.host(one)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"])
def test_every_hosts_own_name_stays(name: str) -> None:
    assert Names(SALT).host(name) == name
    assert Names(SALT).server(f"decode@{name}:30000/1.2") == f"decode@{name}:30000/1.2"


@given(st.text(max_size=100), st.sampled_from([int(k) for k in EventKind]))
def test_any_text_fits_and_is_stable(text: str, kind: int) -> None:
    names = Names(SALT)
    new = names.event(kind, text)
    assert new == names.event(kind, text)
    assert len(new.encode("utf-8", "replace")) <= 72 or new == text


def test_an_identity_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    groups = tuple(GroupInfo(f"g{n}", (0, 1), "x@y:1") for n in range(245))
    raw = msgspec.json.encode(msgspec.structs.replace(IDENTITY, groups=groups))
    assert len(raw) < f.IDENTITY_MAX
    RecordingWriter.create(tmp_path / "b.pdrec", raw, size=f.MIN_SIZE)
    with pytest.raises(ValueError, match="identity without names"):
        redact((tmp_path / "b.pdrec").read_bytes(), Names(SALT))


def test_every_record_of_a_full_ring_is_rewritten(tmp_path: Path) -> None:
    writer = RecordingWriter.create(tmp_path / "c.pdrec", who(), size=f.MIN_SIZE)
    capacity = f.layout(f.MIN_SIZE)[5]
    for number in range(capacity + 3):
        writer.event(EventKind.ENQUEUE, room=number + 1, text=f"secret-{number}")
    clean = redact((tmp_path / "c.pdrec").read_bytes(), Names(SALT))
    assert b"secret" not in clean
    assert np.all(np.array([e.room for e in parse(clean).events()]) == np.arange(4, capacity + 4))
