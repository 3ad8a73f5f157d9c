"""The nouns of pdctl: what a rank is, what a round is, what a queue holds.

Everything here is data. It is used inside the rank (agent, recording), on the wire and by the judges, so it
imports the standard library and msgspec only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from pdctl.protocol.fields import Coordinate, Count, Member, MonoNs, Name, ProcessId, Size


class KVPoll(IntEnum):
    """State of one request's transfer, as the engine's ``sglang.srt.disaggregation.base.conn.KVPoll`` numbers it."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


UNKNOWN = 255
"""Stored where a poll, a reduced poll or an action is not known (yet)."""


_POLL_NAMES = {0: "Failed", 1: "Bootstrapping", 2: "WaitingForInput", 3: "Transferring", 4: "Success", UNKNOWN: "-"}


def poll_name(value: int) -> str:
    """Return the engine's name of a poll value, ``"-"`` for an unknown one."""
    return _POLL_NAMES.get(value) or f"poll {value}"


class Phase(IntEnum):
    """How far a rank got in a round. ENTERED is written before the collective starts."""

    ENTERED = 1
    REDUCED = 2
    APPLIED = 3


class Action(IntEnum):
    """What a rank did with a request after the reduction of a round."""

    KEPT = 0
    COMMITTED = 1
    FAILED = 2
    ABORTED = 3
    MOVED = 4


REDUCED_QUEUES = ("decode.held", "decode.deferred", "decode.checksum", "prefill.waiting", "prefill.chunk")
"""Lists about which the ranks of a group agree besides their polls: failed transfers whose memory may have to be kept, their
releases, KV checksums of a batch, requests that wait for the model, one that is computed in parts."""
SPARE_QUEUES = ("reduction.0", "reduction.1", "reduction.2")
"""Names for further functions of the engine that reduce; a NOTE in the recording says which function has which name."""

QUEUES: tuple[str, ...] = (
    "prefill.bootstrap",
    "prefill.inflight",
    "decode.pending",
    "decode.prealloc",
    "decode.transfer",
    "decode.retracted",
    "waiting",
    "running",
    *REDUCED_QUEUES,
    *SPARE_QUEUES,
)
"""Queue names in the order a request passes them; the index is the code used in recordings."""

POLLED_QUEUES: tuple[str, ...] = ("prefill.bootstrap", "prefill.inflight", "decode.prealloc", "decode.transfer")
"""Queues whose polls are reduced over a group."""
COMPARED_QUEUES = (*POLLED_QUEUES, *REDUCED_QUEUES, *SPARE_QUEUES)
"""All that has rounds: queues whose polls are reduced over a group, and lists of flags that are."""

OTHER = {"prefill": "decode", "decode": "prefill"}
"""The role that a request of a role needs on the other side."""
WAITS_FOR_OTHER = frozenset({"decode.pending", *POLLED_QUEUES})
"""Queues in which a request waits for the other side."""


class EventKind(IntEnum):
    """What an event in a recording says. ``a`` and ``b`` of the record are explained per kind."""

    ENQUEUE = 1  # room entered ``queue``; slot; text = rid
    DEQUEUE = 2  # room left ``queue``; a = Action
    STATE = 3  # status of a room changed; a = new KVPoll
    DP_REGISTER = 4  # prefill registered its dp rank for a room; a = dp rank
    DP_QUERY = 5  # decode asked the bootstrap server for a room's dp rank
    DP_ANSWER = 6  # answer to the query; a = dp rank or -1 for not found
    ABORT = 7  # an abort reached the rank; text = rid
    SLOT_ALLOC = 8  # metadata slot taken by room
    SLOT_FREE = 9  # metadata slot given back
    FAULT_ARMED = 10  # a fault was placed; a = fault number, text = its kind
    FAULT_FIRED = 11  # a fault acted on room; a = fault number, b = decode tp rank aimed at, text = its kind
    FAULT_ENDED = 12  # a fault ended; a = fault number, text = why
    LANDED = 13  # a slot that read 0 when its request polled Success now holds b; a = ns since that Success
    META_SENT = 14  # prefill wrote the metadata row of a room; a = decode tp rank, b = return code
    NOTE = 15  # text says it
    FAILURE = 16  # the engine noted why a room failed; text = its reason
    LOOKUP = 17  # decode asked a bootstrap server for its prefill server; a = times in a row without an answer; text = address


class GroupInfo(msgspec.Struct, frozen=True):
    """One process group a rank is in.

    kind: the field's name of it (``attn-tp``, ``attn-cp``, ``tp``, ``pp``, ``world``).
    ranks: members as ranks of ``world``, in group order.
    world: names the torch.distributed world these numbers belong to; equal strings mean comparable ranks.
    fr_id: group id in PyTorch's flight recorder, -1 where unknown.
    """

    kind: Name
    ranks: tuple[Member, ...]
    world: Name
    fr_id: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)] = -1

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def key(self) -> str:
        """Same string on every member and nowhere else."""
        return f"{self.world}|{self.kind}|{','.join(map(str, self.ranks))}"


ATTACHED = "attach"
"""How an agent got into its rank that was put there while the rank ran (``Identity.loaded_by``)."""


class Identity(msgspec.Struct, frozen=True):
    """The identity of a rank. Sizes are those of its server. Ranks count from 0; -1 means unknown.

    tp / cp are the attention-TP and attention-CP coordinates, because the polls are reduced over those groups.
    instance: one start of one server: equal for all its ranks, different after a restart.
    service: what stays the same over restarts (role, host, port).
    cluster: ranks of different clusters are never shown as one ("" where unknown).
    lacks: protections that this rank's code does not have: ``gate``, ``aborts`` (an ABORT message of decode ends prefill's
    bootstrap thread), ``failures`` (prefill does not tell decode of a failed transfer).
    element: torch's name of the type that polls are reduced in, "" unknown.
    """

    engine: Name
    engine_version: Name
    pdctl_version: Name
    role: Name
    host: Name
    pid: ProcessId
    proc_start: Count
    started_wall_ns: Count
    started_mono_ns: MonoNs
    instance: Name
    service: Name
    cluster: Name
    world: Name
    world_rank: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    dp: Coordinate = 0
    dp_size: Size = 1
    pp: Coordinate = 0
    pp_size: Size = 1
    cp: Coordinate = 0
    cp_size: Size = 1
    tp: Coordinate = 0
    tp_size: Size = 1
    dp_attention: bool = False
    backend: Name = ""
    armed: bool = False
    loaded_by: Name = ""
    lacks: tuple[Name, ...] = ()
    groups: tuple[GroupInfo, ...] = ()
    element: Name = ""

    @property
    def label(self) -> str:
        """``decode dp0 pp0 tp1``: role and coordinates, cp only where there is more than one.

        If the coordinates are unknown (-1), the label is its endpoint or its process.
        """
        if self.tp < 0:
            return self.service
        cp = f" cp{self.cp}" if self.cp_size > 1 else ""
        return f"{self.role} dp{self.dp} pp{self.pp}{cp} tp{self.tp}"

    @property
    def logged(self) -> str:
        """``DP1 TP1``: how the engine's log calls the rank where it counts tp otherwise, "" where it does not.

        Under dp attention the engine counts over all tp ranks of the server; ``tp`` is the place in the attention-TP group.
        """
        whole = next((group.ranks for group in self.groups if group.kind == "tp"), ())
        if self.world_rank not in whole or whole.index(self.world_rank) == self.tp:
            return ""
        stage = f" PP{self.pp}" if self.pp_size > 1 else ""
        return f"DP{self.dp}{stage} TP{whole.index(self.world_rank)}"

    @property
    def unit(self) -> str:
        """``decode dp0 of INSTANCE``: its data-parallel rank, whose ranks have the same requests and wait for each other."""
        return f"{self.role} dp{self.dp} of {self.instance or self.service}"

    @property
    def selector(self) -> str:
        """``decode:dp0:pp0:tp1``: the label as a pattern of ``--rank``, for commands to be typed.

        The label itself if the coordinates are unknown.
        """
        return self.label if self.tp < 0 else self.label.replace(" ", ":")

    @property
    def who(self) -> str:
        """``decode dp0 pp0 tp1 (pid 7)``; without a pid where no process is known."""
        return f"{self.label} (pid {self.pid})" if self.pid else self.label


class Seam(msgspec.Struct, frozen=True):
    """A place in the engine that pdctl reads or hooks. It is found in the rank's loaded code, never by the version."""

    name: str
    present: bool
    detail: str = ""


class QueueEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request in a queue. slot is -1 without one; state is a KVPoll or UNKNOWN; age is -1.0 where unknown, seconds."""

    room: int
    rid: str
    slot: int = -1
    state: int = UNKNOWN
    age: float = -1.0


class SlotEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A metadata slot that belongs to a request: the room expected in it and the room found there (0: not written)."""

    slot: int
    expected: int
    found: int


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One Python frame: function name, file (last two path components) and line."""

    function: str
    file: str
    line: int


NEXT_STAGE, STAGE_BEFORE = "send to the next stage", "receive from the previous stage"
"""Steps in which a rank waits for another stage (``Call.inside``). The operation itself may have no frame of its own."""


class Call(msgspec.Struct, frozen=True):
    """The call that a rank's main thread is in.

    op: collective or blocking operation (``all_reduce``, ``broadcast``, …), "" if it is in none.
    group: GroupInfo.kind of the collective's group, "" unknown. elements: numbers in the tensor, -1 unknown.
    inside: the engine's step around it (``poll of decode.transfer``, ``recv_requests``, ``model forward``), "" unknown.
    seq: the number of the collective in its group, as the backend counts, -1 unknown. While the group is in step the number is
    equal on all members. source: ``stack`` or ``flight recorder``. pg: torch's name of the group, equal on its members.
    """

    op: str = ""
    group: str = ""
    elements: int = -1
    inside: str = ""
    source: str = "stack"
    seq: int = -1
    pg: str = ""


class GroupCount(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How many collectives of one torch process group this rank has entered.

    pg: torch's name of the group: equal on its members and, within one torch world, nowhere else. kind: GroupInfo.kind,
    "" for a group the adapter does not know. size: members. seq: as the group's backend counts. Gloo counts sends and receives
    too (torch 2.13), so ranks of a group with point-to-point traffic may differ without an error.
    """

    pg: str
    kind: str
    size: int
    seq: int


class FlightEntry(msgspec.Struct, frozen=True):
    """One collective in PyTorch's flight recorder, as the rank itself recorded it.

    pg_id: torch's number of the group in that process; pg_name: its description there. seq: sequence number in the group.
    sizes: shapes of the input tensors. retired: the collective is over. state: torch's word, which for Gloo stays
    ``scheduled`` whatever happens (torch 2.13), so that only ``retired`` tells.
    """

    pg_id: int
    pg_name: str
    seq: int
    op: str
    backend: str
    sizes: tuple[tuple[int, ...], ...]
    state: str
    retired: bool
    created_wall_ns: int


class FaultStatus(msgspec.Struct, frozen=True):
    """The state of a fault in the rank that holds it. left_s: seconds until it ends by itself.

    pending: writes held back now. released: writes done late. dropped: writes not done, because nobody waited for them any
    more. failed: writes that the engine could not do. ended: why the fault ended, "" while it is in place. leased: the fault
    ends with the command that placed it; ``left_s`` is then the rest of the lease. passed: chosen visits that passed because
    another room was held. seed, share, rid, value: as in :class:`pdctl.faults.fault.Fault`. age_s: seconds since it was placed,
    -1.0 from an agent that does not tell.
    """

    id: str
    kind: str
    target: str
    delay_s: float
    left_s: float
    visits: int
    eligible: int
    fired: int
    pending: int
    owner: str = ""
    room: int = 0
    hits: int = 0
    released: int = 0
    dropped: int = 0
    failed: int = 0
    last_room: int = 0
    ended: str = ""
    leased: bool = False
    seed: int = 0
    share: float = 1.0
    rid: str = ""
    value: int = 0
    passed: int = 0
    age_s: float = -1.0


class ServiceThread(msgspec.Struct, frozen=True):
    """The threads of an engine that run one function. None of them ends while its rank goes on.

    ended_mono_ns: when the first was seen to have ended, 0 none, or before the agent came. error: type and place of its
    exception, "" without one.
    """

    function: Name
    running: Count = 0
    ended: Count = 0
    ended_mono_ns: MonoNs = 0
    error: Name = ""


class Moment(msgspec.Struct, frozen=True):
    """The part of a status that changes between two looks at a loop. Times in ns of the rank's monotonic clock.

    It is the answer to ``status`` with ``moment`` set. An older agent answers with its whole status, which is one, too.
    counts: of every process group of more than one rank.
    """

    mono_ns: int
    ticks: int
    tick_mono_ns: int
    call: Call
    stack: tuple[Frame, ...]
    rounds: dict[str, int]
    counts: tuple[GroupCount, ...] = ()


class Status(Moment, frozen=True, kw_only=True):
    """A live rank's answer to ``status``: cheap, no queue is walked. threads: of the engine, beside the scheduler's."""

    identity: Identity
    seams: tuple[Seam, ...]
    recording: str
    recording_off: str
    hook_errors: dict[str, int]
    hooks_removed: tuple[str, ...]
    faults: tuple[FaultStatus, ...]
    agent_cpu_s: float
    threads: tuple[ServiceThread, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """A live rank's answer to ``queues``. missing: queues the adapter can't read here, with the reason."""

    mono_ns: int
    ticks: int
    queues: dict[str, list[QueueEntry]]
    slots: list[SlotEntry]
    missing: dict[str, str]
