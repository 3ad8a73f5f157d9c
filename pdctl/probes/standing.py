"""Finds scheduler loops that have not turned and can't: of stopped processes, and of ranks that wait for good. Pure.

A rank that waits may wait for a long forward of another. So it stands only where nobody whom it may wait for works, or is
not seen: those are the ranks of its torch world.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdctl.probes.turns import (
    FROZEN,
    GONE,
    HALTED,
    KERNEL,
    LOST,
    OUTSIDE_S,
    STOOD_S,
    STOPPED,
    TRACED,
    Loop,
    Turn,
)
from pdctl.protocol.durations import seconds
from pdctl.report.findings import Finding, finding
from pdctl.targets import nodeset

STANDS_S = 10.0
"""How long a loop must not have turned."""
KERNEL_S = 30.0
"""The same where its main thread is in one wait in the kernel."""
LONG_S = 300.0
"""The same where its main thread is in no collective, where one of a forward has all its ranks, or where a rank that was not
reached may compute."""
MOST_EVIDENCE = 16


def standing(loops: Sequence[Loop]) -> frozenset[int]:
    """Return the numbers of the ranks whose loops stand, among ``loops``: all ranks that were found."""
    return frozenset(n for members in _worlds(loops) for n in _standing(loops, members))


def judge(loops: Sequence[Loop]) -> tuple[Finding, ...]:
    """Return a finding for each server in which a loop stands. loops: as for :func:`standing`.

    A server has two where processes are stopped, and other ranks, which don't wait for them, stand as well.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    gone: dict[tuple[object, ...], list[int]] = {}
    for members in _worlds(loops):
        stand = _standing(loops, members)
        if stand:
            server = (*nodeset.server(loops[stand[0]].identity), any(_is_held(loops[n].turn) for n in stand))
            found.setdefault(server, []).extend(stand)
            gone.setdefault(server, []).extend(n for n in members if loops[n].turn.state in GONE)
    return tuple(_finding(loops, sorted(members), sorted(gone[server])) for server, members in found.items())


def _worlds(loops: Sequence[Loop]) -> Iterable[list[int]]:
    """Return the ranks that may wait for each other: those of one torch world of a server."""
    worlds: dict[tuple[object, ...], list[int]] = {}
    for n, loop in enumerate(loops):
        worlds.setdefault((*nodeset.server(loop.identity), loop.identity.world), []).append(n)
    return worlds.values()


def _standing(loops: Sequence[Loop], members: Sequence[int]) -> list[int]:
    stopped = [n for n in members if _is_held(loops[n].turn)]
    waiting = [n for n in members if _waits(loops[n].turn)]
    free = [n for n in members if loops[n].turn.turned or loops[n].turn.state in GONE]
    if len({*stopped, *waiting, *free}) < len(members):
        return stopped  # the others may wait for one that works
    least_s = LONG_S if _lost(loops, members) or in_a_forward(loops, members) else STANDS_S
    return sorted({*stopped, *(n for n in waiting if _old(loops[n].turn, least_s))})


def _lost(loops: Sequence[Loop], members: Sequence[int]) -> list[int]:
    return [n for n in members if loops[n].turn.state == LOST]


def _is_held(turn: Turn) -> bool:
    """Return whether something outside of a process holds it: it is stopped, or in one wait in the kernel for long."""
    if turn.turned or turn.stood_s < STOOD_S:
        return False
    return turn.state in HALTED or (turn.in_kernel and (turn.age_s or 0.0) >= (LONG_S if turn.computing else KERNEL_S))


def _waits(turn: Turn) -> bool:
    """Return whether a rank waits: in a collective, for another stage, or for long where nothing takes long."""
    if turn.turned or turn.stood_s < STOOD_S:
        return False
    blocked = not turn.computing and not turn.idle and bool(turn.doing) and _old(turn, LONG_S)
    return turn.waiting or (blocked and turn.age_s is not None)


def _old(turn: Turn, least_s: float) -> bool:
    if turn.age_s is not None:
        return turn.age_s >= least_s
    return turn.outside and bool(turn.call.inside) and turn.stood_s >= OUTSIDE_S  # without: before its first turn


def in_a_forward(loops: Sequence[Loop], members: Sequence[int]) -> bool:
    """Return whether a collective of a forward has all its ranks among these: it goes on, and takes long on a busy machine."""
    inside: dict[tuple[object, ...], list[int]] = {}
    for n in members:
        call = loops[n].turn.call
        if call.op and call.inside == "model forward":
            key = (call.pg, call.group, call.op, call.seq, call.elements)
            inside.setdefault(key, []).append(n)
    return any(len(ranks) >= _size(loops, members, ranks[0]) for ranks in inside.values())


def _size(loops: Sequence[Loop], members: Sequence[int], n: int) -> int:
    """Return how many ranks the group has in whose collective rank ``n`` is: those of its stage where that is not told."""
    one, kind = loops[n].identity, loops[n].turn.call.group
    told = [info.size for info in one.groups if info.kind == kind]
    return told[0] if told else sum(loops[m].identity.pp == one.pp for m in members)


def _finding(loops: Sequence[Loop], members: Sequence[int], gone: Sequence[int]) -> Finding:
    """Return the finding of ranks that stand. gone: ranks of their worlds that have ended, or are said to have."""
    identities = [loop.identity for loop in loops]
    names, axes = nodeset.server_names(identities), nodeset.shown_axes(identities)

    def fold(ranks: Iterable[int]) -> str:
        return nodeset.fold((nodeset.place(loops[n].identity, names) for n in ranks), axes)

    stopped = [n for n in members if _is_held(loops[n].turn)]
    waiting = [n for n in members if n not in stopped]
    places: dict[str, list[int]] = {}
    for n in waiting:
        places.setdefault(loops[n].turn.doing, []).append(n)
    about = stopped or waiting
    summary = (
        f"the scheduler loop{'s'[: len(about) != 1]} of {fold(about)} {_have(about)} not turned {_since(loops, about)}"
    )
    next_step = ""
    if stopped:
        halts: dict[str, list[int]] = {}
        states: dict[str, list[int]] = {}
        for n in stopped:
            halts.setdefault(loops[n].turn.halted, []).append(n)
            states.setdefault(loops[n].turn.state, []).append(n)
        if len(halts) == 1:
            summary += f": {'its process is' if len(stopped) == 1 else 'their processes are'} {next(iter(halts))}"
        else:
            each = [f"{fold(ranks)} {'are' if len(ranks) > 1 else 'is'} {how}" for how, ranks in halts.items()]
            summary += f": {'; '.join(each)}"
        them = "it" if len(stopped) == 1 else "them"
        steps = [_continue(loops, states[STOPPED])] if STOPPED in states else []
        steps += [_GO_ON[how] for how in states if how in _GO_ON]
        next_step = f"{'. '.join(steps)}."
        if not gone:
            next_step += f" What waits for {them} goes on then: nothing has to be aborted or restarted."
        if waiting:
            waits = [f"{fold(ranks)}, in {doing}" for doing, ranks in places.items()]
            summary += f". For {them} {'wait' if len(waiting) > 1 else 'waits'} {'; '.join(waits)}"
    else:
        each = [f"{fold(ranks)} {'are' if len(ranks) > 1 else 'is'} in {doing}" for doing, ranks in places.items()]
        summary += f": {'; '.join(each)}"
    lost = _lost(loops, gone)
    if lost:
        it = "it" if len(lost) == 1 else "they"
        summary += f". What {fold(lost)} {'does' if len(lost) == 1 else 'do'} is not known: {it} may keep them waiting"
        see = f"See on {_hosts(loops, lost)} whether {fold(lost)} still {'runs' if len(lost) == 1 else 'run'}"
        next_step = (
            f"{next_step} {see}: a stopped process needs SIGCONT. Where one has ended, restart this server.".strip()
        )
    return finding(
        "PD114",
        f"{summary[0].upper()}{summary[1:]}.",
        group=fold(members),
        ranks=tuple(loops[n].identity.label for n in members),
        units=(loops[n].identity.unit for n in members),
        evidence=tuple(_evidence(loops[n]) for n in members[:MOST_EVIDENCE]),
        next_step=next_step,
    )


_GO_ON = {
    KERNEL: "It goes on when what it waits for there comes, and no signal wakes it before: look for a file system or a device"
    " that does not answer (dmesg on its host; pdctl stacks shows the call)",
    TRACED: "End the debugger, or let the process go on in it",
    FROZEN: "Thaw the container: docker unpause, or 0 into its cgroup.freeze",
}


def _continue(loops: Sequence[Loop], stopped: Sequence[int]) -> str:
    """Return how all these processes are let go on, host by host."""
    pids: dict[str, list[str]] = {}
    for n in stopped:
        pids.setdefault(loops[n].identity.host, []).append(str(loops[n].identity.pid))
    them = "it" if len(stopped) == 1 else "them"
    if len(pids) == 1:
        hosts = "its host" if len(stopped) == 1 else "their host"
        return f"kill -CONT {' '.join(*pids.values())} lets {them} go on, on {hosts}"
    each = [f"on {host or 'an unknown host'}: kill -CONT {' '.join(those)}" for host, those in pids.items()]
    return f"Let {them} go on, {'; '.join(each)}"


def _hosts(loops: Sequence[Loop], ranks: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(loops[n].identity.host or "its host" for n in ranks))


def _have(ranks: Sequence[int]) -> str:
    return "have" if len(ranks) > 1 else "has"


def _since(loops: Sequence[Loop], ranks: Sequence[int]) -> str:
    """Return for how long none of these has turned, in words."""
    ages = [loops[n].turn.age_s for n in ranks]
    known = [age for age in ages if age is not None]
    if known:
        return f"for {seconds(min(known))}"
    return f"while pdctl looked, for {seconds(min(loops[n].turn.stood_s for n in ranks))}"


def _evidence(loop: Loop) -> str:
    turn = loop.turn
    parts = [
        f"last turn began {seconds(turn.age_s)} ago" if turn.age_s is not None else "when it last turned is not known"
    ]
    parts.append(f"its process is {turn.halted}" if turn.state in HALTED or not turn.doing else f"in {turn.doing}")
    return f"{loop.identity.label}: {', '.join(parts)}, the same in all looks over {seconds(turn.stood_s)}"
