"""Documents of many ranks: 8 servers, each of 8 groups of 8, as the judges give them where all is well."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pdctl.probes.leaks.model import LeaksDocument, RankLeaks
from pdctl.probes.metadata.model import MetadataDocument, RankReport, SlotReport, TensorReport
from pdctl.probes.queues.model import GroupReport, QueueRow, QueuesDocument, RankNow
from pdctl.probes.ranks.judge import RankRow, RanksDocument
from pdctl.probes.routing.model import Asker, Holder, RoomRow, RoutingDocument, ServerRow, Side
from pdctl.probes.stuck.model import Place, StuckDocument, Waiting
from pdctl.protocol.model import GroupInfo, Identity
from tests.support.identities import identity

HOSTS = 8


def identities(hosts: int = HOSTS, dps: int = 8, tps: int = 8) -> list[Identity]:
    """Return the ranks: a quarter of the servers are prefill. Each has ``dps`` groups of ``tps``."""
    found = []
    for host in range(hosts):
        role = "prefill" if host < max(1, hosts // 4) else "decode"
        service = f"{role}@10.0.0.{host}:30000"
        for dp in range(dps):
            for tp in range(tps):
                rank = dp * tps + tp
                group = GroupInfo("attn-tp", tuple(range(dp * tps, dp * tps + tps)), f"w{host}")
                found.append(
                    identity(
                        engine="sglang",
                        engine_version="0.5.15",
                        role=role,
                        host=f"node{host}",
                        pid=1000 + rank,
                        service=service,
                        instance=f"{service}/1",
                        world=f"w{host}",
                        world_rank=rank,
                        dp=dp,
                        dp_size=dps,
                        tp=tp,
                        tp_size=tps,
                        groups=(group,),
                    )
                )
    return found


def ranks(among: list[Identity], **odd: dict[str, object]) -> RanksDocument:
    """Return the document of ``ranks``. odd: label of a rank of the last server, blanks as _, to what is other of it."""
    last = among[-1].instance
    rows = []
    for n, one in enumerate(among):
        changes = odd.get(one.label.replace(" ", "_"), {}) if one.instance == last else {}
        row = RankRow(
            rank=one.label,
            state="live",
            source="agent",
            role=one.role,
            dp=one.dp,
            pp=one.pp,
            cp=one.cp,
            tp=one.tp,
            host=one.host,
            pid=one.pid,
            engine=one.engine,
            engine_version=one.engine_version,
            pdctl_version="1",
            cluster="prod",
            service=one.service,
            instance=one.instance,
            started_wall_ns=1,
            ticks=1000 + n,
            tick_age_s=(n % 5) / 10,
            rounds={f"{one.role}.transfer/attn-tp": 800 + one.dp, f"{one.role}.prealloc/attn-tp": 900 + one.dp},
            where="waits in broadcast of new requests" if n % 3 else "is in run_batch (managers/scheduler.py)",
            recording=f"/dev/shm/pdctl/{n}",
            recording_size=16 << 20,
        )
        rows.append(msgspec.structs.replace(row, **changes))
    return RanksDocument(ranks=tuple(rows))


def group(one: Identity, *, several: bool = True, size: int = 8, verdict: str = "AGREE") -> GroupReport:
    """Return a group's report."""
    server = f" · {one.service}" if several else ""
    return GroupReport(
        title=f"{one.role} dp{one.dp} pp0 · attention-TP group of {size}{server}",
        ranks=tuple(f"tp{tp}" for tp in range(size)),
        verdict=verdict,
        queues=(
            QueueRow(f"{one.role}.transfer", tuple([one.dp] * size), "agree", "", 800),
            QueueRow("running", tuple([3 + one.dp] * size), "not polled"),
        ),
        now=tuple(RankNow(f"tp{tp}", "live", "waits in broadcast of new requests", 0.1) for tp in range(size)),
        compared={f"{one.role}.transfer": 800},
        role=one.role,
    )


def queues(among: list[Identity]) -> QueuesDocument:
    """Return the document of ``diff-queues``."""
    return QueuesDocument(groups=tuple(group(one) for one in among if one.tp == 0))


def leaks(among: list[Identity]) -> LeaksDocument:
    """Return the document of ``dump leaks``."""
    rows = (RankLeaks(rank=one.label, judged=True, looks=5, slots=64, slots_free=60 - one.dp) for one in among)
    return LeaksDocument(watch_s=4.0, ranks=tuple(rows))


def metadata(among: list[Identity]) -> MetadataDocument:
    """Return the document of ``dump metadata``: each decode rank has two slots taken."""
    return MetadataDocument(ranks=tuple(map(_report, among)), slots=tuple(_slots(among)))


def _report(one: Identity) -> RankReport:
    return RankReport(
        rank=one.label,
        role=one.role,
        cluster="",
        engine="sglang",
        version="0.5.15",
        state="live",
        service=one.service,
        instance=one.instance,
        server=one.service,
        device="cpu",
        aux="rdma",
        aux_why="mooncake over rdma",
        gate=True,
        zeroed=True,
        safe="yes" if one.role == "decode" else "-",
        why="the gate holds what has not landed",
        slots=64,
        taken=2 if one.role == "decode" else 0,
        tensors=(TensorReport("output_ids", "int32", 64),),
    )


def _slots(among: list[Identity]) -> Iterator[SlotReport]:
    for one in among:
        for slot in range(2) if one.role == "decode" else ():
            yield SlotReport(
                rank=one.label,
                slot=slot,
                verdict="landed",
                rid=f"request-{slot}",
                expected=7000 + slot,
                found=7000 + slot,
                where="decode.transfer",
                state="Transferring",
                held_s=1.5,
                service=one.service,
                instance=one.instance,
            )


def stuck(among: list[Identity], rooms: int = 2000) -> StuckDocument:
    """Return the document of ``stuck``: so many rooms on their way."""
    heads = [one for one in among if one.role == "decode" and one.tp == 0]
    names = tuple(f"tp{tp}" for tp in range(8))
    requests = []
    for n in range(rooms):
        one = heads[n % len(heads)]
        requests.append(
            Waiting(
                room=7_000_000 + n,
                rid=f"r{n}",
                side=f"decode dp{one.dp} pp0 of {one.service}",
                role="decode",
                queue="decode.transfer",
                state="WaitingForInput",
                age_s=30 - n / 100,
                ranks=(Place(names, "decode.transfer", "WaitingForInput", 1.0, n % 64, 512),),
                peer="prefill dp0 has it in bootstrap",
                progress="moving",
                cover="SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
                limit_s=300.0,
                left_s=270.0 + n / 100,
                holds="slot 1, 512 KV tokens",
            )
        )
    return StuckDocument(requests=tuple(requests), pause_s=2.0)


def routing(among: list[Identity], rooms: int = 2000) -> RoutingDocument:
    """Return the document of ``verify-routing``: so many rooms that all agree on."""
    services = dict.fromkeys((one.role, one.service) for one in among)
    sides = tuple(
        Side(role=role, service=service, ranks=64, answered=64, dp_size=8, balance="follow_bootstrap_room",
             registers="no rooms" if role == "prefill" else "no room")
        for role, service in services
    )  # fmt: skip
    servers = tuple(
        ServerRow(f"10.0.0.{n}:8998", info={"dp_size": "8", "follow_bootstrap_room": "True"}) for n in range(2)
    )
    names = tuple(f"decode dp0 pp0 tp{tp}" for tp in range(8))
    places = tuple(f"tp{tp}" for tp in range(8))
    rows = tuple(
        RoomRow(room=8000 + n, rids=(f"r{n}",), verdict="AGREE", text="", formula=n % 8,
                prefill=(Holder(("prefill dp0 pp0 tp0",), n % 8, "prefill.bootstrap", "Bootstrapping"),),
                decode=(Asker(names, places, n % 8, ("decode.prealloc",), "Bootstrapping"),))
        for n in range(rooms)
    )  # fmt: skip
    return RoutingDocument(rooms=rows, sides=sides, servers=servers)
