"""What a drill file says. Plain data; :mod:`.files` reads it, ``pdctl schema drill.file`` prints its schema.

Times are texts as ``5s`` (:mod:`pdctl.protocol.durations`), since that is how people write them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_SEED = (1 << 31) - 1


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors: a misspelt key must not change what a drill tests."""


class FaultSpec(_Strict, frozen=True, kw_only=True):
    """The fault. kind and its parameter are those of ``pdctl inject``: delay, dp, state or other_room, where it has one.

    rank: patterns of the ranks meant, as ``--rank`` takes them. room 0: any; hits 0: no limit; share: part of the rooms.
    """

    kind: str
    rank: tuple[str, ...]
    delay: str = ""
    dp: int = -1
    state: str = ""
    other_room: int = 0
    room: int = 0
    hits: int = 0
    share: float = 1.0
    allow_ranks: int = 1
    allow_rooms: int = 1


class LabLoad(_Strict, frozen=True, kw_only=True):
    """Requests that pdctl sends: to an embedded cluster, as ``pdctl lab load`` does, or to real servers, as a router does.

    room, prefill_dp: fixed instead of chosen. to: ``prefill`` and ``decode`` leave the other server out.
    abort_after: give up requests that are not finished by then.
    """

    requests: int = 8
    concurrency: int = 8
    rate: float = 0.0
    prompt_tokens: int = 24
    new_tokens: int = 8
    room: int = 0
    prefill_dp: int = -1
    to: Literal["both", "prefill", "decode"] = "both"
    abort_after: str = ""


class LoadSpec(_Strict, frozen=True, kw_only=True):
    """One of: requests that pdctl sends, or a command whose exit status 0 says that all its requests were good."""

    lab: LabLoad | None = None
    command: tuple[str, ...] | None = None


class Expect(_Strict, frozen=True, kw_only=True):
    """What an engine that holds does.

    requests: ``finish`` with the right tokens; ``end``: they may fail, but must not stay; ``end in fault``: they end
    while the fault is still in place. broken: codes of findings that mean BROKEN; empty: every one of level error.
    """

    requests: Literal["finish", "end", "end in fault"] = "finish"
    broken: tuple[str, ...] = ()


class Stop(_Strict, frozen=True, kw_only=True):
    """When the fault is healed at once. failed: requests. stalled: a rank's scheduler takes no turn for so long."""

    failed: int = 10
    stalled: str = "20s"


class LabOptions(_Strict, frozen=True, kw_only=True):
    """How an embedded cluster is started, as ``pdctl lab up`` takes it; empty and 0 stand for its own defaults.

    metadata_device ``auto``: cuda where there is one.
    """

    prefill: str = ""
    decode: str = ""
    without: tuple[str, ...] = ()
    load_balance: str = ""
    force_query: tuple[str, ...] = ()
    metadata_device: str = ""
    slots: int = 0
    kv_tokens: int = 0
    bootstrap_timeout: str = ""
    waiting_timeout: str = ""
    group_timeout: str = ""


class LabSpec(LabOptions, frozen=True, kw_only=True):
    """The embedded cluster that ``--lab`` starts. control: what ``--control`` starts instead, over the same options."""

    control: LabOptions | None = None


class Drill(_Strict, frozen=True, kw_only=True, rename={"for_": "for"}):
    """A drill.

    fault None: the load itself is the cause (a request sent to the wrong place, or given up). for: how long the fault
    lives, and how long its requests are waited for. keep: how long the fault stays when they are over. settle: how long
    after healing, or the last answer, everything may take to be clean. load: ``none`` for the operator's own traffic,
    ``lab``, or what it is. reference: where the bug is known from.
    """

    name: str
    about: str
    reference: str = ""
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] = 1
    fault: FaultSpec | None = None
    load: str | LoadSpec = "lab"
    for_: str = "20s"
    keep: str = ""
    settle: str = "30s"
    expect: Expect = Expect()
    stop: Stop = Stop()
    lab: LabSpec | None = None
