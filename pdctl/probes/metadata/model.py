"""What ``dump metadata`` takes and gives: ranks with their rows and recordings in, slots with verdicts out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import Identity
from pdctl.report.findings import Finding


@dataclass(frozen=True)
class Mismatch:
    """A round in which a request was decided on while its slot held another room. when_s: wall clock, seconds."""

    slot: int
    room: int
    found: int
    action: int
    when_s: float


@dataclass(frozen=True)
class WrongKV:
    """A request that the engine dropped for its KV checksum. when_s: wall clock, seconds. here: it was wrong on this rank."""

    room: int
    when_s: float
    here: bool


@dataclass
class History:
    """What a rank's recording says about slots and rooms. Times are seconds of the wall clock.

    whole: it reaches back to the start of the rank, so that a room that is not in it was never there.
    owners: slot → rooms that have owned it, oldest first. ended: room → when it left the transfer queue, or failed.
    landed: (slot, room) → (when, seconds after Success). sent: (room, slot, decode tp) → when prefill wrote the row.
    faults: room → kind of the fault that fired on it. wrong_kv: room → that its KV was not what prefill sent.
    problems: what in the recording can't be trusted.
    """

    whole: bool = False
    rooms: set[int] = field(default_factory=set)
    owners: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    landed: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    sent: dict[tuple[int, int, int], float] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    wrong_kv: dict[int, WrongKV] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankRows:
    """One rank. silence: why it gave no answer. again: a second answer, where the first gave something to confirm.

    unconfirmed: why there is none, though it was asked for.
    history: None without a recording, and why in ``history_off``.
    """

    identity: Identity
    state: str
    silence: str = ""
    body: Metadata | None = None
    again: Metadata | None = None
    unconfirmed: str = ""
    history: History | None = None
    history_off: str = ""


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of one rank.

    rid, expected: of its owner, "" and 0 without one; where: the owner's queue. found: room in the slot, None not read.
    verdict: ``landed``, ``not written``, ``stale owner``, ``collision``, ``foreign room``, ``another room`` (whose can't
    be told), ``filled`` and ``not filled`` (prefill's own rows), ``free``, ``no owner``, ``not read``.
    landed_s: seconds since it was seen to land, late; late_s: how long after Success; sent_s: seconds since prefill wrote
    it. held_s: seconds since the slot was taken. None where unknown. sums: tensor → crc32 of the row, in hex.
    changing: it was being written while it was read.
    """

    rank: str
    slot: int
    verdict: str
    text: str = ""
    rid: str = ""
    expected: int = 0
    found: int | None = None
    where: str = ""
    state: str = "-"
    sent_s: float | None = None
    landed_s: float | None = None
    late_s: float | None = None
    held_s: float | None = None
    changing: bool = False
    sums: dict[str, str] = {}
    cluster: str = ""
    service: str = ""
    instance: str = ""


class TensorReport(msgspec.Struct, frozen=True):
    """A tensor of the buffers and the bytes of one slot's row in it."""

    name: str
    dtype: str
    row_bytes: int


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """How metadata reaches a rank, and whether that is safe there.

    safe: ``yes``, ``partly``, ``no``, ``unknown``, ``-`` on prefill, and why. taken: slots taken now.
    server: what tells its server from another one that has a rank of this name, "" where none has.
    """

    rank: str
    role: str
    cluster: str
    engine: str
    version: str
    state: str
    service: str = ""
    instance: str = ""
    server: str = ""
    silence: str = ""
    device: str = ""
    aux: str = ""
    aux_why: str = ""
    gate: bool | None = None
    zeroed: bool | None = None
    safe: str = "unknown"
    why: str = ""
    slots: int = 0
    taken: int = 0
    tensors: tuple[TensorReport, ...] = ()
    not_read: str = ""


class MetadataDocument(Document, frozen=True, kw_only=True, tag="pdctl.metadata"):
    """Answer of ``pdctl dump metadata``."""

    ranks: tuple[RankReport, ...]
    slots: tuple[SlotReport, ...]
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
