"""States as looks give them."""

from __future__ import annotations

from msgspec.structs import replace

from pdctl.report.findings import finding
from pdctl.watch.model import GroupState, RankState, WatchState

S = 1_000_000_000
AT = 1_790_000_000 * S


def rank(tp: int = 0, role: str = "decode", **more: object) -> RankState:
    """Return a rank that goes on."""
    usual = {
        "state": "live", "ticks": 100, "tick_age_s": 0.01, "rounds": {f"{role}.transfer/attn-tp": 100},
        "queues": {f"{role}.transfer": 2, f"{role}.prealloc": 0}, "oldest_s": {f"{role}.transfer": 0.3}, "slots": 64,
        "slots_used": 2, "gated": 0, "faults": 0, "service": f"{role}@host", "instance": f"{role}-{tp}",
    }  # fmt: skip
    return RankState(rank=f"{role} dp0 pp0 tp{tp}", role=role, **{**usual, **more})  # type: ignore[arg-type]


def healthy(at_s: float = 0, size: int = 2, **more: object) -> WatchState:
    """Return one decode server that is well, ``at_s`` seconds after AT: 100 rounds a second."""
    count = 100 + int(100 * at_s)
    ranks = tuple(rank(tp, rounds={"decode.transfer/attn-tp": count}) for tp in range(size))
    group = GroupState(
        title="decode dp0 pp0 · attention-TP group of 2", kind="polls", verdict="AGREE", role="decode",
        ranks=tuple(one.rank for one in ranks), rounds={"decode.transfer": count},
    )  # fmt: skip
    at = AT + int(at_s * S)
    usual = {"took_s": 0.012, "ranks": ranks, "groups": (group,), "checked_wall_ns": at - 3 * S}
    return WatchState(at_wall_ns=at, **{**usual, **more})  # type: ignore[arg-type]


ROOM = 7203441
CAUSE = finding(
    "PD101", f"Metadata of room {ROOM} landed on tp0 before tp1, and no gate held tp0 back.",
    group="decode dp0 pp0 · attention-TP group of 2", rooms=(ROOM,), ranks=("decode dp0 pp0 tp0", "decode dp0 pp0 tp1"),
)  # fmt: skip


def diverged(at_s: float = 0) -> WatchState:
    """Return that server after its ranks parted; one rank of another is silent."""
    state = healthy(at_s)
    [group] = state.groups
    parted = GroupState(
        title=group.title, kind="polls", verdict="DIVERGED", role="decode", ranks=group.ranks, queue="decode.transfer",
        round=881, age_s=14.2, rounds=group.rounds,
    )  # fmt: skip
    stands = replace(finding("PD114", "The scheduler loops of decode dp0 tp0,1 have not turned."), follows="PD101")
    silent = rank(0, "prefill", state="silent", reason="no answer within 0.3 s", queues={}, rounds={}, oldest_s={})
    return WatchState(
        at_wall_ns=state.at_wall_ns,
        took_s=0.3,
        ranks=(silent, *state.ranks),
        groups=(parted,),
        findings=(CAUSE, stands),
        problems=("prefill dp0 pp0 tp0: no answer within 0.3 s",),
        checked_wall_ns=state.checked_wall_ns,
    )
