"""Documents of ``dump queues`` and ``dump groups``."""

from __future__ import annotations

import msgspec

from pdctl.protocol.documents import Document


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request in a queue of a rank. slot, tokens, kv, locked, dp: -1 without one, or unknown. age_s: None unknown.

    state: of its transfer; ``unknown``, or ``-`` in a queue whose requests have none. clock_s: how long the time-out that may
    end it has been running, None where none runs. locked: tokens of the prefix cache that it keeps from eviction. In
    ``decode.deferred`` are failed requests whose memory decode keeps for prefill. acks: prefill ranks that have said that they
    write no more, needed: how many have to; left_s: until the memory is given back all the same, None never. -1 and None
    elsewhere. service, instance: the server, and the start of it, that the rank is of.
    """

    rank: str
    queue: str
    room: int
    rid: str
    slot: int = -1
    state: str = "-"
    age_s: float | None = None
    clock_s: float | None = None
    tokens: int = -1
    kv: int = -1
    locked: int = -1
    dp: int = -1
    cluster: str = ""
    service: str = ""
    instance: str = ""
    acks: int = -1
    needed: int = -1
    left_s: float | None = None


class RankQueues(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's queues and their lengths. missing: queues that can't be read, with the reason.

    server: what tells its server from another one that has a rank of this name, "" where none has.
    """

    rank: str
    cluster: str
    service: str
    state: str
    instance: str = ""
    server: str = ""
    silence: str = ""
    lengths: dict[str, int] = {}
    missing: dict[str, str] = {}


class QueuesDump(Document, frozen=True, kw_only=True, tag="pdctl.dump.queues"):
    """Answer of ``pdctl dump queues``. Requests by rank, then queue, in the queue's own order."""

    ranks: tuple[RankQueues, ...]
    requests: tuple[QueuedRequest, ...]
    partial: bool = False


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process group of a rank. members: ranks of ``world``; labels: those of them that are known, by name.

    fr_id: the group's number in PyTorch's flight recorder of this rank, -1 unknown.
    """

    rank: str
    kind: str
    size: int
    members: tuple[int, ...]
    labels: tuple[str, ...]
    world: str
    world_rank: int
    fr_id: int
    cluster: str = ""


class GroupsDump(Document, frozen=True, kw_only=True, tag="pdctl.dump.groups"):
    """Answer of ``pdctl dump groups``. silent: ranks of which no groups are known, with the reason."""

    groups: tuple[GroupRow, ...]
    silent: dict[str, str] = msgspec.field(default_factory=dict)
    partial: bool = False
