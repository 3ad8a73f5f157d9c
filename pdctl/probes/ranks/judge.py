"""Who is there: one row a rank, from its own answer, or from its recording where it does not answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pdctl.probes.standing import standing
from pdctl.probes.turns import Loop, call_words
from pdctl.protocol.documents import Document
from pdctl.protocol.model import Call, Phase, Seam, Status
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.report.findings import Finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

NS = 1e9
OUTSIDE = "no agent is in it: turns and rounds are not known"


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank.

    state: ``live`` (it answered), ``silent`` (its process runs, its agent did not answer), ``outside`` (it has no agent here
    and is read from outside), ``dead``, ``recorded`` (only its recording was asked for), ``no agent`` (its server should
    have it, nothing of it is here); reason says more for all but ``live``. source: where the numbers are from, ``agent``,
    ``outside`` (also of a silent one), ``recording`` or "". ticks, tick_age_s (seconds since
    its last turn) and rounds (``queue/group kind`` to the ordinal of the last round entered) are None or empty where
    unknown. where: what its main thread does, in words.
    recording: its path, "" when recording_off says why there is none; size in bytes.
    agent_cpu_s: CPU seconds the agent used so far, agent_cpu_share of the time since it started. tcp: where it listens for
    other hosts, "" where it was not asked to, or tcp_off says why it does not. store: HOST:PORT of its job's TCPStore, as it
    reaches that, "" where it has none. stands: its scheduler loop has not turned and can't.
    logged: how the engine's log calls it where that counts tp otherwise (``DP1 TP1``), else "".
    dp, pp, cp and tp are -1 where nothing is known of it but how it is reached.
    """

    rank: str
    state: str
    reason: str = ""
    source: str = ""
    role: str
    dp: int
    pp: int
    cp: int
    tp: int
    host: str
    pid: int
    engine: str
    engine_version: str
    pdctl_version: str
    cluster: str
    service: str
    instance: str
    started_wall_ns: int
    ticks: int | None = None
    tick_age_s: float | None = None
    rounds: dict[str, int] = {}
    call: Call | None = None
    where: str = ""
    armed: bool = False
    faults: int = 0
    loaded_by: str = ""
    backend: str = ""
    recording: str = ""
    recording_size: int = 0
    recording_off: str = ""
    hook_errors: dict[str, int] = {}
    hooks_removed: tuple[str, ...] = ()
    seams: tuple[Seam, ...] = ()
    agent_cpu_s: float | None = None
    agent_cpu_share: float | None = None
    endpoint: str = ""
    tcp: str = ""
    tcp_off: str = ""
    store: str = ""
    stands: bool = False
    logged: str = ""

    @property
    def is_host(self) -> bool:
        """Whether this is no rank, but a host or a pod that gives none: only its name is known."""
        return self.state == "silent" and self.tp < 0 and not (self.endpoint or self.pid)


class RanksDocument(Document, frozen=True, kw_only=True, tag="pdctl.ranks"):
    """Answer of ``pdctl ranks``. earlier: dead ranks of earlier starts, not shown. problems: what was not, or partly, read.

    others: what belongs to other users and was left alone; it makes nothing partial.
    """

    ranks: tuple[RankRow, ...]
    earlier: int = 0
    problems: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    partial: bool = False


def judge(
    answers: Sequence[Answer[Status]],
    recordings: Sequence[Recording | None],
    *,
    earlier: int = 0,
    problems: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
    loops: Sequence[Loop] = (),
    now_wall_ns: int | None = None,
) -> RanksDocument:
    """Return the document of these answers.

    loops: of these ranks in the same order, and of others after them. now_wall_ns: what ages of dead ranks are counted to
    (default: now; where recordings are all there is, the last turn of any).
    """
    now = time.time_ns() if now_wall_ns is None else now_wall_ns
    if now_wall_ns is None and answers and all(answer.rank.state == "recorded" for answer in answers):
        now = max((_last_turn_ns(one) for one in recordings if one is not None), default=now)
    stand = standing(loops)
    rows = tuple(
        msgspec.structs.replace(row(answer, recording, now), stands=n in stand)
        for n, (answer, recording) in enumerate(zip(answers, recordings, strict=True))
    )
    torn = [
        f"{answer.rank.identity.label}: recording: {problem}"
        for answer, recording in zip(answers, recordings, strict=True)
        for problem in (recording.problems if recording is not None else ())
    ]
    said = (*problems, *torn)
    partial = any(r.state != "live" and not (r.state == r.source == "outside") for r in rows) or bool(said)
    return RanksDocument(ranks=rows, earlier=earlier, problems=said, others=others, partial=partial)


def row(answer: Answer[Status], recording: Recording | None, now_wall_ns: int) -> RankRow:
    """Return the row of one rank: what it said, else what its recording says, else only why there is nothing."""
    common = _common(answer.rank)
    outside = answer.rank.state == "outside"
    if answer.body is not None:
        state, source, reason = ("outside", "outside", OUTSIDE) if outside else ("live", "agent", "")
        said = _from_status(answer.body)
        if outside:
            said["ticks"] = None  # what is counted there are no turns
        if answer.rank.agent_off:
            state, reason = "silent", f"{answer.rank.agent_off}; read from outside in its agent's place"
            if recording is not None:
                counted = _from_recording(recording, now_wall_ns, answer.rank.seen_ns)
                said |= {name: counted[name] for name in ("ticks", "tick_age_s", "rounds")}
        return msgspec.structs.replace(common, state=state, source=source, reason=reason, **said)
    state = "silent" if answer.rank.live and not outside else answer.rank.state
    common = msgspec.structs.replace(common, state=state, reason=answer.reason)
    if recording is None:
        return common
    return msgspec.structs.replace(
        common, source="recording", **_from_recording(recording, now_wall_ns, answer.rank.seen_ns)
    )


def _common(rank: FoundRank) -> RankRow:
    i = rank.identity
    return RankRow(
        rank=i.label, state=rank.state, role=i.role, dp=i.dp, pp=i.pp, cp=i.cp, tp=i.tp, host=i.host, pid=i.pid,
        engine=i.engine, engine_version=i.engine_version, pdctl_version=i.pdctl_version, cluster=i.cluster,
        service=i.service, instance=i.instance, started_wall_ns=i.started_wall_ns, armed=i.armed, loaded_by=i.loaded_by,
        backend=i.backend, recording=rank.recording_name, recording_size=rank.recording_size,
        recording_off=rank.recording_off, endpoint=rank.endpoint, tcp=rank.tcp, tcp_off=rank.tcp_off,
        store=rank.store, logged=i.logged,
    )  # fmt: skip


def _from_status(status: Status) -> dict[str, object]:
    age = max(0.0, (status.mono_ns - status.tick_mono_ns) / NS) if status.tick_mono_ns else None
    up_s = (status.mono_ns - status.identity.started_mono_ns) / NS
    return {
        "ticks": status.ticks,
        "tick_age_s": age,
        "rounds": {name: number for name, number in status.rounds.items() if number >= 0},
        "call": status.call,
        "where": call_words(status.call, status.stack),
        "faults": len(status.faults),
        "recording_off": status.recording_off,
        "hook_errors": status.hook_errors,
        "hooks_removed": status.hooks_removed,
        "seams": status.seams,
        "agent_cpu_s": status.agent_cpu_s,
        "agent_cpu_share": status.agent_cpu_s / up_s if up_s > 0 else None,
    }


def _last_turn_ns(recording: Recording) -> int:
    """Return when a rank's last turn began, on the clock of the wall."""
    return recording.tick_mono_ns + recording.start_wall_ns - recording.start_mono_ns


def _from_recording(recording: Recording, now_wall_ns: int, seen_ns: int) -> dict[str, object]:
    # The monotonic clock may be of another boot or host; the start of the recording ties it to the wall's.
    last_wall = _last_turn_ns(recording)
    if seen_ns:  # in a trace, ages are those when it was made
        now_wall_ns = seen_ns + recording.start_wall_ns - recording.start_mono_ns
    age = max(0.0, (now_wall_ns - last_wall) / NS) if recording.tick_mono_ns else None
    return {
        "ticks": recording.ticks if recording.tick_mono_ns else None,
        "tick_age_s": age,
        "rounds": {f"{s.queue}/{s.group.kind}": s.last for s in recording.streams if len(s)},
        "where": last_round_words(recording),
        "pid": recording.pid,
    }


def last_round_words(recording: Recording) -> str:
    """Return how far the rank got in the round it entered last, "" when it entered none."""
    stream = recording.entered_last
    if stream is None:
        return ""
    run = stream.newest
    words = {
        Phase.ENTERED: f"in the all_reduce of {run.n}, group {stream.group.kind}",
        Phase.REDUCED: "after its all_reduce, before deciding",
        Phase.APPLIED: "over",
    }
    return f"last round: {run.last} of {stream.queue}, {words[run.phase]}"
