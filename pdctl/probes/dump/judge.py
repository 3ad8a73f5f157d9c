"""Makes the documents of what ranks answer of their queues, and registered of their groups. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.dump.model import GroupRow, GroupsDump, QueuedRequest, QueuesDump, RankQueues
from pdctl.protocol.model import UNKNOWN, WAITS_FOR_OTHER, Identity, poll_name
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import DEFERRED, Rooms
from pdctl.targets.servers import told_apart


def queues_of(answers: Sequence[Answer[Rooms]]) -> QueuesDump:
    """Return the document of these answers."""
    rows, requests = [], []
    identities = [answer.rank.identity for answer in answers]
    apart = told_apart(identities, [f"{i.label} {i.cluster}" for i in identities])
    for answer, server in zip(answers, apart, strict=True):
        i, body = answer.rank.identity, answer.body
        lengths: dict[str, int] = {}
        for entry in body.rooms if body is not None else ():
            lengths[entry.queue] = lengths.get(entry.queue, 0) + 1
            requests.append(
                QueuedRequest(
                    rank=i.label,
                    queue=entry.queue,
                    room=entry.room,
                    rid=entry.rid,
                    slot=entry.slot,
                    state="unknown"
                    if entry.queue in WAITS_FOR_OTHER and entry.state == UNKNOWN
                    else poll_name(entry.state),
                    age_s=entry.age_s if entry.age_s >= 0 else None,
                    clock_s=entry.clock_s if entry.clock_s >= 0 else None,
                    tokens=entry.tokens,
                    kv=entry.kv,
                    locked=entry.locked,
                    dp=entry.dp,
                    cluster=i.cluster,
                    service=i.service,
                    instance=i.instance,
                )
            )
        for kept in body.deferred if body is not None else ():
            lengths[DEFERRED] = lengths.get(DEFERRED, 0) + 1
            requests.append(
                QueuedRequest(
                    rank=i.label,
                    queue=DEFERRED,
                    room=kept.room,
                    rid=kept.rid,
                    slot=kept.slot,
                    age_s=kept.held_s if kept.held_s >= 0 else None,
                    kv=kept.kv,
                    acks=kept.acks,
                    needed=kept.needed,
                    left_s=kept.left_s if kept.left_s >= 0 else None,
                    cluster=i.cluster,
                    service=i.service,
                    instance=i.instance,
                )
            )
        rows.append(
            RankQueues(
                rank=i.label,
                cluster=i.cluster,
                service=i.service,
                state=answer.rank.state,
                instance=i.instance,
                server=server,
                silence="" if body is not None else answer.reason or answer.rank.state,
                lengths=lengths,
                missing={**body.missing, **_agent(answer.rank)} if body is not None else {},
            )
        )
    return QueuesDump(
        ranks=tuple(rows), requests=tuple(requests), partial=any(row.silence or row.missing for row in rows)
    )


def groups_of(ranks: Sequence[FoundRank], every: Sequence[FoundRank]) -> GroupsDump:
    """Return the process groups of ``ranks``; ``every`` rank lends its name to the numbers in them."""
    names = {(r.identity.world, r.identity.world_rank): r.identity.label for r in every if r.identity.groups}
    rows = [
        GroupRow(
            rank=rank.identity.label,
            kind=info.kind,
            size=info.size,
            members=info.ranks,
            labels=tuple(names[info.world, n] for n in info.ranks if (info.world, n) in names),
            world=info.world,
            world_rank=rank.identity.world_rank,
            fr_id=info.fr_id,
            cluster=rank.identity.cluster,
        )
        for rank in ranks
        for info in rank.identity.groups
    ]
    silent = {rank.identity.label: _why(rank, rank.identity) for rank in ranks if not rank.identity.groups}
    return GroupsDump(groups=tuple(rows), silent=silent, partial=bool(silent))


def _agent(rank: FoundRank) -> dict[str, str]:
    return {"agent": f"{rank.agent_off}; read from outside instead"} if rank.agent_off else {}


def _why(rank: FoundRank, identity: Identity) -> str:
    return rank.endpoint_off or f"{rank.state}: no group known of {identity.label}"
