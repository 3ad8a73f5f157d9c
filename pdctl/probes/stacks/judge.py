"""Judges where ranks are: looks in; a tree, outliers, collectives and findings out. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.ranks.judge import last_round_words
from pdctl.probes.stacks import deadlock, formatting
from pdctl.probes.stacks.collectives import collectives
from pdctl.probes.stacks.model import GroupStacks, RankLooks, RankStack, StacksDocument, Standing
from pdctl.probes.stacks.moves import IDLE, MIXED, MOVING, STUCK, common, idle, moves, stood_s
from pdctl.probes.stacks.tree import Stack, merge
from pdctl.probes.turns import call_words
from pdctl.protocol.model import Frame
from pdctl.targets import nodeset
from pdctl.targets.nodeset import Place


def judge(
    views: Sequence[RankLooks], *, with_collectives: bool = True, problems: tuple[str, ...] = ()
) -> StacksDocument:
    """Return the document of these looks. problems: what else could not be seen, in words."""
    said = _Names(views)
    groups = [_group(views, members, said) for members in _groups(views)]
    outliers = {n for _, odd in groups for n in odd}
    quiet = {n for members in _groups(views) if idle([views[n] for n in members]) for n in members}
    stacks = [
        Stack(n, stack[::-1], common(view) if len(view.looks) > 1 else -1, n in quiet)
        for n, view in enumerate(views)
        if (stack := _stack(view))
    ]
    problems = (*problems, *(f"{view.identity.label}: {view.silence}" for view in views if view.silence))
    spans = [(view.looks[-1].mono_ns - view.looks[0].mono_ns) / 1e9 for view in views if view.looks]
    return StacksDocument(
        looks=max((len(view.looks) for view in views), default=0),
        span_s=max(spans, default=0.0),
        groups=tuple(group for group, _ in sorted(groups, key=lambda pair: not pair[1])),
        tree=merge(stacks, said.fold),
        ranks=tuple(_row(view, outlier=n in outliers, quiet=n in quiet) for n, view in enumerate(views)),
        collectives=collectives(views, said.names, said.within, said.title) if with_collectives else (),
        findings=deadlock.findings(views, said.fold),
        partial=bool(problems),
        problems=problems,
        notes=tuple(_told([view.flight_off for view in views], said)),
    )


def worth_a_longer_look(views: Sequence[RankLooks]) -> bool:
    """Return whether ranks stand in a way that is a finding if it lasts, and has not been seen to last yet."""
    fold = _Names(views).fold
    return deadlock.suspected(views, fold) and not deadlock.findings(views, fold)


def anything_stuck(views: Sequence[RankLooks]) -> bool:
    """Return whether a rank stands that is not idle, or did not answer: whether flight recorders have to explain something."""
    quiet = {n for members in _groups(views) if idle([views[n] for n in members]) for n in members}
    return any((n not in quiet and moves(view) == STUCK) or view.silence for n, view in enumerate(views))


class _Names:
    """What ranks, given by their number in ``views``, are called."""

    def __init__(self, views: Sequence[RankLooks]) -> None:
        identities = [view.identity for view in views]
        self._axes = nodeset.shown_axes(identities)
        servers = nodeset.server_names(identities)
        self.places: list[Place] = [nodeset.place(one, servers) for one in identities]
        self.names = [nodeset.fold([place], self._axes) for place in self.places]

    def fold(self, ranks: Sequence[int]) -> str:
        """Return ``decode dp0 tp0-6``."""
        return nodeset.fold((self.places[n] for n in ranks), self._axes)

    def title(self, ranks: Sequence[int]) -> str:
        """Return what the ranks have in common: ``decode dp0``; all of them where that is nothing."""
        names = {self.places[n].name for n in ranks}
        axes = self._same(ranks) if len(ranks) > 1 else list(self._axes)
        return nodeset.fold([self.places[n] for n in ranks][:1], axes) if len(names) == 1 else self.fold(ranks)

    def within(self, ranks: Sequence[int], group: Sequence[int]) -> str:
        """Return ``tp0-6``: the ranks without what their group has in common."""
        axes = [axis for axis in self._axes if axis not in self._same(group)]
        return nodeset.fold((self.places[n] for n in ranks), axes or ["tp"], named=False)

    def _same(self, ranks: Sequence[int]) -> list[str]:
        return [axis for axis in self._axes if len({getattr(self.places[n], axis) for n in ranks}) == 1]


def _stack(view: RankLooks) -> tuple[Frame, ...]:
    return view.last.stack if view.last is not None else view.outside


# ---- groups ----------------------------------------------------------------------------------------------------------


def _groups(views: Sequence[RankLooks]) -> list[list[int]]:
    """Return the ranks that work on the same requests: one server's, of one dp rank (of all under dp attention) and stage."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for n, view in enumerate(views):
        one = view.identity
        key = (*nodeset.server(one), -1 if one.dp_attention else one.dp, one.pp)
        groups.setdefault(key, []).append(n)
    return list(groups.values())


def _group(views: Sequence[RankLooks], members: list[int], said: _Names) -> tuple[GroupStacks, list[int]]:
    """Return the group and its outliers."""
    at: dict[tuple[str, ...], list[int]] = {}
    for n in members:
        at.setdefault(_place(views[n]), []).append(n)
    ranked = sorted(at.values(), key=lambda ranks: (len(ranks), ranks))
    states = [moves(views[n]) for n in members]
    quiet = idle([views[n] for n in members])
    all_move = MOVING in states and STUCK not in states and not any(views[n].silence for n in members)
    odd = [] if len(ranked) < 2 or all_move or quiet else _odd(ranked, len(members))
    places = tuple(
        Standing(
            ranks=said.within(ranks, members),
            members=tuple(said.names[n] for n in ranks),
            where=_where(views[ranks[0]], plural=len(ranks) > 1),
            moves=IDLE if quiet else _moves([views[n] for n in ranks]),
            outlier=ranks[0] in odd,
        )
        for ranks in ranked
    )
    reason = IDLE if quiet else "all move" if all_move and len(members) > 1 else ""
    if odd:
        reason = _reason(places, one_look=max(len(views[n].looks) for n in members) == 1)
    group = GroupStacks(title=said.title(members), size=len(members), places=places, reason=reason)
    return group, odd


def _odd(ranked: list[list[int]], size: int) -> list[int]:
    """Return the ranks outside the majority; everybody where there is none."""
    most = len(ranked[-1])
    return [n for ranks in (ranked[:-1] if most * 2 > size else ranked) for n in ranks]


def _place(view: RankLooks) -> tuple[str, ...]:
    if view.last is None:
        return ("silent", view.state, view.silence, *formatting.place_of(None, view.outside))
    return (*formatting.place_of(view.last.call, view.last.stack), view.in_kernel)


def _where(view: RankLooks, *, plural: bool) -> str:
    if view.last is not None:
        where = formatting.predicate(view.last.call, view.last.stack, plural=plural)
        return f"{where}, {view.in_kernel}" if view.in_kernel else where
    if view.state != "live":
        why = f" ({view.silence})" if view.silence not in ("", view.state) else ""
        return f"{'are' if plural else 'is'} {view.state}{why}"
    seen = f"; seen from outside in {formatting.innermost(view.outside)}" if view.outside else ""
    return f"{'do' if plural else 'does'} not answer: {view.silence}{seen}"


def _moves(views: Sequence[RankLooks]) -> str:
    states = {moves(view) for view in views}
    return states.pop() if len(states) == 1 else MIXED


def _reason(places: Sequence[Standing], *, one_look: bool) -> str:
    parts = [f"{place.ranks} {place.where}" if place.outlier else _others(place) for place in places[:4]]
    more = f", and {len(places) - 4} more places" if len(places) > 4 else ""
    skew = " (one look: it may be skew)" if one_look else ""
    return f"{', '.join(parts)}{more}{skew}"


def _others(place: Standing) -> str:
    count = len(place.members)
    return f"the other {count} {place.where}" if count > 1 else f"the other one {place.where}"


# ---- ranks -----------------------------------------------------------------------------------------------------------


def _row(view: RankLooks, *, outlier: bool, quiet: bool) -> RankStack:
    last, stack = view.last, _stack(view)
    state = view.state if view.state != "live" or not view.silence else "silent"
    source = "agent" if last is not None and view.state != "outside" else "outside" if stack else ""
    return RankStack(
        rank=view.identity.label,
        state=state,
        reason=view.silence,
        source=source,
        moves=IDLE if quiet else moves(view),
        stood_s=0.0 if quiet else stood_s(view),
        outlier=outlier,
        where=", ".join(filter(None, (call_words(last.call, last.stack), view.in_kernel)))
        if last is not None
        else formatting.predicate(None, stack)
        if stack
        else "",
        last_round=last_round_words(view.recording) if view.recording is not None else "",
        ticks=last.ticks if last is not None and view.state != "outside" else None,
        call=last.call if last is not None else None,
        stack=stack,
        pid=view.identity.pid,
        host=view.identity.host,
    )


def _told(reasons: Sequence[str], said: _Names) -> list[str]:
    """Return each reason once, with the ranks it is about; reasons: one a rank, "" for none."""
    about: dict[str, list[int]] = {}
    for n, why in enumerate(reasons):
        if why:
            about.setdefault(why, []).append(n)
    return [f"{said.fold(ranks)}: {why}" for why, ranks in about.items()]
