"""How often ranks would part in a fleet without a metadata gate: closed form, its assumptions stated. Pure.

A request parts its group where not all ranks first see its row in the same round: with q(k) the probability that a rank
sees it k rounds after its Success, and n ranks that are independent, with probability 1 − Σ q(k)ⁿ. That is the rule that
:mod:`pdctl.explore` steps; the tests hold the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, inf, log, log1p, sqrt

import msgspec

from pdctl.protocol import durations
from pdctl.protocol.documents import Document

HOUR_S = 3600.0
ASSUMES = (
    "Ranks have no metadata gate (SGLang <= 0.5.12.post1), and freed slots read 0; with the gate the probability is 0.",
    "Every rank sees Success of a request in the same round; where they do not, rows have longer to land: fewer part.",
    "How late a row lands is independent between ranks and requests; delays that ranks share make it rarer per request.",
    "Rounds come at an even pace; each request is on one group, and groups are alike.",
    "A group that parts stays lost for the rest of the hour.",
)


@dataclass(frozen=True)
class Lag:
    """How late metadata rows land on a rank. late: share of (rank, request) whose slot still reads 0 at Success.

    measured_s: by how many seconds those were late; where there are none, their delay is exponential with mean mean_s.
    low, high: 95 % confidence bounds of the share, where it was counted.
    """

    late: float
    mean_s: float = 0.0
    measured_s: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None

    def together(self, ranks: int, round_s: float) -> float:
        """Return Σ q(k)ⁿ over k ≥ 1: that ``ranks`` all see their row first in the same later round."""
        if not self.late:
            return 0.0
        if self.measured_s:
            rounds = Counter(max(1, -int(-s // round_s)) for s in self.measured_s)
            total = len(self.measured_s)
            return float(sum((self.late * count / total) ** ranks for count in rounds.values()))
        if not self.mean_s:
            return self.late**ranks  # late, and there by the next round
        step = round_s / self.mean_s
        return self.late**ranks * (-expm1(-step)) ** ranks / -expm1(-ranks * step)


@dataclass(frozen=True)
class Fleet:
    """ranks: of all decode groups together; group: ranks of one; rate: requests per second of one group; round_s: pace."""

    ranks: int
    group: int = 8
    rate: float = 5.0
    round_s: float = 0.01

    @property
    def groups(self) -> int:
        """Whole groups in the fleet."""
        return self.ranks // self.group


def parse_fleet(text: str) -> tuple[Fleet, bool]:
    """Return the fleet that ``ranks=10000,group=8,rate=5/s,round=10ms`` means, and whether ``round`` was given.

    Raises ValueError, which says what is wrong.
    """
    given = _pairs(text, ("ranks", "group", "rate", "round"))
    if "ranks" not in given:
        raise ValueError("ranks=N is missing")
    group = _whole(given.get("group", "8"), "group", 2, 1024)
    fleet = Fleet(
        ranks=_whole(given["ranks"], "ranks", group, 10**7),
        group=group,
        rate=_number(given.get("rate", "5").removesuffix("/s"), "rate", 1e-6, 1e6),
        round_s=durations.parse(given.get("round", "10ms"), most_s=60.0, what="round"),
    )
    return fleet, "round" in given


def parse_lag(text: str) -> Lag:
    """Return the lag that ``late=0.1%,mean=3ms`` means. Raises ValueError, which says what is wrong."""
    given = _pairs(text, ("late", "mean"))
    if "late" not in given:
        raise ValueError("late=SHARE is missing: how many slots still read 0 at Success")
    share = given["late"]
    late = _number(share.rstrip("%"), "late", 0.0, 100.0) / (100.0 if share.endswith("%") else 1.0)
    if late > 1:
        raise ValueError(f"late={share}: a share from 0 to 1, or a percentage")
    return Lag(late, durations.parse(given["mean"], most_s=3600.0, what="mean") if "mean" in given else 0.0)


def counted(late_s: Sequence[float], total: int, unseen: int = 0) -> Lag:
    """Return the lag of ``total`` observed (rank, request) pairs, of which these were late. The bounds are Wilson's, 95 %.

    unseen: how many more were late and not seen to land; they count in the share, and are taken to be late as the others.
    """
    if not total:
        raise ValueError("nothing was observed")
    share, z = (len(late_s) + unseen) / total, 1.959964
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    wide = z / (1 + z * z / total) * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low, high = max(0.0, middle - wide), min(1.0, middle + wide)
    return Lag(share, measured_s=tuple(late_s), low=low if share else 0.0, high=high)


def parts(lag: Lag, group: int, round_s: float) -> float:
    """Return the probability that one request parts its group."""
    if lag.late >= 1:
        return max(0.0, 1.0 - lag.together(group, round_s))
    # 1 − (1 − m)ⁿ without cancellation: the share m may be tiny.
    return max(0.0, -expm1(group * log1p(-lag.late)) - lag.together(group, round_s))


class Point(msgspec.Struct, frozen=True):
    """A fleet of so many ranks: the probability that any group parts within an hour."""

    ranks: int
    probability: float


class Curve(msgspec.Struct, frozen=True):
    """That probability over the number of ranks, at one rate (requests per second of a group)."""

    rate: float
    points: tuple[Point, ...]


class FleetDocument(Document, frozen=True, kw_only=True, tag="pdctl.fleet"):
    """Answer of ``pdctl replay --fleet``. request: probability that one request parts its group; low, high: its bounds.

    hour: that any group of the fleet parts within an hour. groups_lost: groups expected to part in it. until_s: expected
    time to the first, None where none ever does. late: share of slots that still read 0 at Success. source: where that
    comes from. observed: (rank, request) pairs it was counted over, 0 where it was given.
    """

    ranks: int
    group: int
    groups: int
    rate: float
    round_s: float
    late: float
    late_mean_s: float
    source: str
    observed: int
    request: float
    request_low: float | None
    request_high: float | None
    hour: float
    hour_low: float | None
    hour_high: float | None
    groups_lost: float
    until_s: float | None
    curves: tuple[Curve, ...]
    assumes: tuple[str, ...] = ASSUMES


def project(fleet: Fleet, lag: Lag, *, source: str, observed: int = 0) -> FleetDocument:
    """Return the projection for ``fleet``."""
    request = parts(lag, fleet.group, fleet.round_s)
    bounds = _bounds(fleet, lag)
    each = fleet.rate * HOUR_S
    low, high = (any_in(each * fleet.groups, p) if p is not None else None for p in bounds)
    total = fleet.rate * fleet.groups
    until = inf if not request else 1 / (total * -log1p(-request)) if request < 1 else 1 / total
    mean = sum(lag.measured_s) / len(lag.measured_s) if lag.measured_s else lag.mean_s
    return FleetDocument(
        ranks=fleet.ranks,
        group=fleet.group,
        groups=fleet.groups,
        rate=fleet.rate,
        round_s=fleet.round_s,
        late=lag.late,
        late_mean_s=mean,
        source=source,
        observed=observed,
        request=request,
        request_low=bounds[0],
        request_high=bounds[1],
        hour=any_in(each * fleet.groups, request),
        hour_low=low,
        hour_high=high,
        groups_lost=fleet.groups * any_in(each, request),
        until_s=None if until == inf else until,
        curves=tuple(_curve(fleet, rate, request) for rate in (fleet.rate / 10, fleet.rate, fleet.rate * 10)),
    )


def _bounds(fleet: Fleet, lag: Lag) -> tuple[float | None, float | None]:
    """Return the least and the most over the share's bounds: where nearly all rows are late together, fewer part again."""
    if lag.low is None or lag.high is None:
        return None, None
    steps = [lag.low + (lag.high - lag.low) * n / 64 for n in range(65)]
    found = [parts(replace(lag, late=late), fleet.group, fleet.round_s) for late in (*steps, lag.late)]
    return min(found), max(found)


def any_in(requests: float, each: float) -> float:
    """Return the probability that any of so many requests parts, where each does with probability ``each``."""
    return 1.0 if each >= 1 and requests > 0 else -expm1(requests * log1p(-min(each, 1.0 - 1e-16)))


def _curve(fleet: Fleet, rate: float, request: float) -> Curve:
    low, high = log(fleet.group), log(max(fleet.ranks, fleet.group * 10))
    sizes = dict.fromkeys(round(exp(low + (high - low) * n / 40) / fleet.group) * fleet.group for n in range(41))
    return Curve(rate, tuple(Point(n, any_in(rate * HOUR_S * (n // fleet.group), request)) for n in sizes))


def _pairs(text: str, names: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in names or not equals or not value:
            raise ValueError(f"{part.strip() or text!r}: known are {', '.join(f'{n}=' for n in names)}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = value
    return given


def _whole(text: str, name: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:12]) <= most:
        raise ValueError(f"{name}={text}: a number from {least} to {most}")
    return int(text)


def _number(text: str, name: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}={text} is no number") from None
    if not least <= value <= most:
        raise ValueError(f"{name}={text}: from {least:g} to {most:g}")
    return value
