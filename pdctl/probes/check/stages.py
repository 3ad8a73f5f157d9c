"""The stages of ``check``: each asks, judges, and says in one line what it came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pdctl.probes.check.model import Outcome
from pdctl.probes.queues import CONFIRM, STALLED_S
from pdctl.probes.routing import GRACE_S
from pdctl.probes.stuck import STUCK_S
from pdctl.report.findings import Finding, finding
from pdctl.targets.client import Client
from pdctl.targets.find import Found


@dataclass(frozen=True)
class Looking:
    """What every stage is given. watch_s: pause between two looks, for the stages that look twice.

    recorded: only recordings are asked, and only stages that can answer from them run.
    """

    found: Found
    client: Client
    watch_s: float
    stuck_s: float = STUCK_S
    recorded: bool = False


@dataclass(frozen=True)
class Stage:
    """One stage. cost: what it does to the ranks, in words. recorded: recordings alone can answer it."""

    name: str
    about: str
    cost: str
    run: Callable[[Looking], Outcome]
    recorded: bool = False


def run(looking: Looking, names: Sequence[str]) -> Iterator[Outcome]:
    """Run the stages of these names, in the order of STAGES, and yield what each came to.

    The client's deadline is that of all of them: a stage that finds no time left is not run, and says so. A rank that did
    not answer one stage is not waited for by the next ones.
    """
    looking.client.give_up_on_silent()
    for stage in STAGES:
        if stage.name not in names:
            continue
        over = looking.client.over
        if over:
            yield Outcome(stage.name, "not run", problems=(f"{stage.name}: {over}",), answered=False)
            continue
        started = time.monotonic()
        outcome = stage.run(looking)
        if looking.client.over:
            late = f"{stage.name}: {looking.client.over} before it had looked at everything"
            outcome = replace(outcome, problems=(*outcome.problems, late))
        yield replace(outcome, name=stage.name, seconds=round(time.monotonic() - started, 3))


def _ranks(looking: Looking) -> Outcome:
    from pdctl.probes.ranks.collect import collect
    from pdctl.probes.ranks.judge import judge

    found = looking.found
    document = judge(*collect(found, looking.client), earlier=found.earlier, problems=found.problems)
    there = "recorded" if looking.recorded else "live"
    silent = [row for row in document.ranks if row.state != there and row.source != "outside"]
    failed = [row for row in document.ranks if row.hook_errors or row.hooks_removed]
    findings: list[Finding] = [
        finding("PD112", f"{row.rank}: {row.reason or row.state}.", ranks=(row.rank,)) for row in silent
    ]
    live = len(document.ranks) - len(silent)
    problems = [*document.problems, *(f"{row.rank}: pdctl's hooks failed there" for row in failed)]
    answer = "have a recording" if looking.recorded else "answer"
    return Outcome(
        "", f"{live} of {len(document.ranks)} ranks {answer}", tuple(findings), tuple(problems), answered=live > 0
    )


def _queues(looking: Looking) -> Outcome:
    from pdctl.probes.queues.look import look

    sockets = not looking.recorded
    document = look(looking.found, looking.client, stalled_s=STALLED_S, confirm=CONFIRM, sockets=sockets)
    compared = sum(sum(group.compared.values()) for group in document.groups)
    several = [group for group in document.groups if len(group.ranks) > 1]
    groups = "1 group" if len(several) == 1 else f"{len(several)} groups"
    said = f"{groups} of several ranks, {compared:,} rounds compared, in step"
    return Outcome("", said, document.findings, document.problems)


def _routing(looking: Looking) -> Outcome:
    from pdctl.probes.routing.look import look

    document = look(looking.found, looking.client, grace_s=GRACE_S)
    heard = sum(1 for server in document.servers if not server.silence)
    said = f"{len(document.rooms)} rooms wait, {heard} of {len(document.servers)} bootstrap servers heard, nothing contradicts"
    return Outcome("", said, document.findings, document.problems)


def _stuck(looking: Looking) -> Outcome:
    from pdctl.probes.stuck.collect import collect, collect_recorded
    from pdctl.probes.stuck.judge import judge

    looks = (collect_recorded if looking.recorded else collect)(looking.found, looking.client, pause_s=looking.watch_s)
    document = judge(looks, pause_s=looking.watch_s, stuck_s=looking.stuck_s)
    return Outcome("", f"{len(document.requests)} requests wait, none is stuck", document.findings, document.problems)


def _config(looking: Looking) -> Outcome:
    from pdctl.probes.config.collect import collect
    from pdctl.probes.config.judge import judge

    document = judge(collect(looking.found.ranks, looking.client))
    servers = len(document.servers)
    said = f"{servers} server{'s'[: servers != 1]} agree on what they must agree on"
    return Outcome("", said, document.findings, document.problems)


def _metadata(looking: Looking) -> Outcome:
    from pdctl.probes.metadata.collect import collect
    from pdctl.probes.metadata.judge import judge

    document = judge(collect(looking.found, looking.client, sums=False), now_s=time.time(), every=False)
    taken = sum(rank.taken for rank in document.ranks)
    return Outcome("", f"{taken} slots in use, each its owner's", document.findings, document.problems)


def _stacks(looking: Looking) -> Outcome:
    from pdctl.probes.stacks.collect import collect
    from pdctl.probes.stacks.judge import judge

    document = judge(collect(looking.found, looking.client), with_collectives=True)
    return Outcome("", "no rank sits in another collective than its peers", document.findings, document.problems)


def _leaks(looking: Looking) -> Outcome:
    from pdctl.probes.leaks.collect import collect
    from pdctl.probes.leaks.judge import judge

    document = judge(collect(looking.found, looking.client, watch_s=looking.watch_s), watch_s=looking.watch_s)
    return Outcome("", "nothing is held without an owner", document.findings, document.problems)


STAGES: tuple[Stage, ...] = (
    Stage("ranks", "every rank answers", "one question to each rank", _ranks, recorded=True),
    Stage("config", "both sides agree on what they must agree on", "two questions to each rank", _config),
    Stage("queues", "the ranks of each group are in step", "reads recordings", _queues, recorded=True),
    Stage(
        "routing",
        "everyone takes each room to be on one rank",
        "a few questions to ranks and servers",
        _routing,
        recorded=True,
    ),
    Stage("metadata", "slots hold their owners' rooms", "reads slots twice, and recordings", _metadata, recorded=True),
    Stage(
        "stuck", "every waiting request will end", "two questions to each rank, a pause apart", _stuck, recorded=True
    ),
    Stage("stacks", "no rank sits in another collective than its peers", "several stacks of each rank", _stacks),
    Stage("leaks", "nothing is held without an owner", "several questions to each rank over a while", _leaks),
)
"""From cheap to intrusive."""
