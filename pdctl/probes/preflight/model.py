"""What ``preflight`` takes and gives: both sides of each pair in, one line a check out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pdctl.probes.routing.model import ServerView
from pdctl.protocol.documents import Document
from pdctl.protocol.numbers import whole
from pdctl.report.findings import Finding

OK, INFO, WARNING, ERROR, UNKNOWN, NOT_APPLICABLE = "ok", "info", "warning", "error", "unknown", "n/a"
RANKS, URLS, SETTINGS = "ranks", "urls", "settings"
"""What a look rests on."""
TRANSFER_VERSION = "transfer_version"
"""Package and version of the transfer backend, among a server's values where it can be seen."""


@dataclass(frozen=True)
class Side:
    """One server. name: as people know it. engine, version: "" unknown. values: its arguments that are known, by the
    engine's names; one that its ranks do not agree on is not among them, but in
    ``apart``. env: its environment variables, None where they are not told.

    silence: why nothing is known of it. ranks: how many it has by its sizes, 0 unknown; answered: of those; silent: the others,
    with the reason. unready: why it takes no requests, as it says; unheard: why it does not tell. lacks: protections that its
    code is known not to have, None where that is not told. registers: which rooms a prefill server registers
    (:mod:`pdctl.probes.routing.facts`), "" not told. hosts: where its ranks are, as they name themselves.
    """

    name: str
    role: str
    engine: str = ""
    version: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] | None = None
    silence: str = ""
    ranks: int = 0
    answered: int = 0
    silent: tuple[str, ...] = ()
    unready: str = ""
    unheard: str = ""
    lacks: frozenset[str] | None = None
    registers: str = ""
    hosts: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    def number(self, name: str, otherwise: int = 0) -> int:
        """Return an argument as a number, ``otherwise`` where it is not known to be one."""
        found = whole(self.values.get(name, ""), 999_999_999)
        return otherwise if found is None else found

    @property
    def group(self) -> int:
        """Ranks that reduce polls together: attention-TP times attention-CP, 0 unknown."""
        tp = self.number("tp_size")
        dp = self.number("dp_size", 1) if self.values.get("enable_dp_attention") == "True" else 1
        return tp // dp if tp and dp else 0

    @property
    def attention_tp(self) -> int:
        """Size of its attention-TP groups, 0 unknown."""
        return self.group // max(1, self.number("attn_cp_size", 1))


@dataclass(frozen=True)
class Pair:
    """Two servers that deal with each other. bootstrap: what its bootstrap server said, None where it was not asked.

    unknown_places: ranks of prefill that its bootstrap server does not know.
    """

    prefill: Side
    decode: Side
    bootstrap: ServerView | None = None
    unknown_places: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Both, as lines name them."""
        return f"{self.prefill.name} > {self.decode.name}"


@dataclass(frozen=True)
class Door:
    """An address of a rank that ranks of the other side connect to, tried from where those are.

    origin, to: names of both. why: why it could not be connected to, or not be tried; "" where it was reached.
    """

    origin: str
    to: str
    address: str
    why: str = ""
    tried: bool = True


@dataclass(frozen=True)
class Clock:
    """How far a wall clock is ahead of this machine's, in seconds, and how far that may be off."""

    name: str
    ahead_s: float
    within_s: float


@dataclass(frozen=True)
class Handshake:
    """A request of its own. answered: None where none was sent, and said tells why. room: 0 unknown.

    queues: rank → the queues in which its recording has the room, in order. unseen: ranks whose recordings could not be read.
    """

    answered: bool | None
    said: str
    room: int = 0
    queues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that is judged. way: RANKS, URLS or SETTINGS. unpaired: why servers belong to no pair, "" where all do.

    said: what other probes find in the same answers. doors, clocks: None where none can be looked at this way.
    router_s: the router's time-out for a request, as the user says, 0 not given.
    """

    way: str
    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...] = ()
    unpaired: str = ""
    said: tuple[Finding, ...] = ()
    doors: tuple[Door, ...] | None = None
    clocks: tuple[Clock, ...] | None = None
    router_s: float = 0.0
    handshake: Handshake | None = None
    problems: tuple[str, ...] = ()


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One check. verdict: ``ok``, ``info``, ``warning``, ``error``, ``unknown``, or ``n/a`` where it does not apply.

    about: the servers it is about, "" all. found: what was seen. why: what the engine does with it. cure: what to
    change, "" for nothing. code: of the finding that it is. essential: unknown, it leaves open whether the deployment is fit.
    """

    check: str
    verdict: str
    found: str
    about: str = ""
    why: str = ""
    cure: str = ""
    code: str = ""
    essential: bool = False


class PreflightDocument(Document, frozen=True, kw_only=True, tag="pdctl.preflight"):
    """Answer of ``pdctl preflight``. way: ``ranks``, ``urls`` or ``settings``. fit: None where that is not known.

    pairs: the servers that deal with each other, as lines name them.
    """

    way: str
    fit: bool | None
    lines: tuple[Line, ...]
    pairs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
