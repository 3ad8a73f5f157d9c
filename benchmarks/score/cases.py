"""What is done to labs: every kind of fault, what happens to processes and routers, and twins in which all is well.

A case names the lab that it needs and what it does there. ``sizes``: ranks of the larger side. A lab that comes out well is
used again. A case whose Truth has no codes is a twin: nothing may be found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.score.stage import NotFiredError, Stage, Truth

Up = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """kind: the fault, or the event, or what the twin is busy with. again: its lab can be used for the next run."""

    name: str
    kind: str
    up: Callable[[int], Up]
    make: Callable[[Stage], Truth]
    sizes: tuple[int, ...] = (2, 4, 8)
    again: bool = False
    twin: bool = False


CASES: list[Case] = []
_SIZES = (2, 4, 8)


def case(
    name: str,
    kind: str,
    up: Callable[[int], Up],
    *,
    sizes: tuple[int, ...] = _SIZES,
    again: bool = False,
    twin: bool = False,
) -> Callable[[Callable[[Stage], Truth]], Callable[[Stage], Truth]]:
    """Put a function into CASES."""

    def put(make: Callable[[Stage], Truth]) -> Callable[[Stage], Truth]:
        CASES.append(Case(name, kind, up, make, sizes, again, twin))
        return make

    return put


def plain(n: int, *more: str) -> Up:
    """One prefill rank, n decode ranks."""
    return ("--prefill", "tp=1", "--decode", f"tp={n}", *more)


def without(fix: str, *more: str) -> Callable[[int], Up]:
    """Return what leaves a fix out of a plain lab."""
    return lambda n: plain(n, "--without", fix, *more)


def both(n: int, *more: str) -> Up:
    """The same number of ranks on both sides."""
    return ("--prefill", f"tp={n}", "--decode", f"tp={n}", *more)


def stages(n: int, *more: str) -> Up:
    """Two stages of prefill."""
    return ("--prefill", f"pp=2,tp={n // 2}", "--decode", f"tp={n // 2}", *more)


def two(n: int, *more: str) -> Up:
    """Two stages of both sides."""
    return ("--prefill", f"pp=2,tp={n // 2}", "--decode", f"pp=2,tp={n // 2}", *more)


def dp2(n: int, *more: str) -> Up:
    """Two dp ranks of prefill."""
    return ("--prefill", "dp=2", "--decode", f"tp={n}", *more)


def decode(tp: int, pp: int = 0) -> str:
    """Return the label of a decode rank."""
    return f"decode dp0 pp{pp} tp{tp}"


def aimed(tp: int) -> tuple[str, str]:
    """Return the option that names a decode rank."""
    return "--rank", f"decode:tp{tp}"


HANGS = ("PD114", "PD160", "PD161", "PD110", "PD141", "PD142", "PD148", "PD112")
"""What ranks that parted show besides: they stand in collectives that do not meet."""


def before(stage: Stage) -> None:
    """Let a seeded number of requests through."""
    count = stage.random.choice((0, 1, 4, 12))
    if count and not stage.lab.load(requests=count, concurrency=4).good:
        raise NotFiredError("the load before it did not complete")


# ---- ranks part ------------------------------------------------------------------------------------------------------


def late(stage: Stage, *what: str) -> Truth:
    """Have the metadata of one rank come late, where no gate waits for it."""
    before(stage)
    tp = stage.pick()
    fault = stage.inject(*what, *aimed(tp), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return Truth(("PD101",), stage.room, (decode(tp),), (*HANGS, "PD103", "PD104"), parts=True)


@case("late metadata, no gate", "delay-metadata", without("gate"))
def _(stage: Stage) -> Truth:
    return late(stage, "--delay-metadata", f"{stage.random.choice((5, 20, 600))}s")


@case("lost metadata, no gate", "drop-metadata", without("gate"))
def _(stage: Stage) -> Truth:
    return late(stage, "--drop-metadata")


@case("the slot has its last owner's room", "delay-metadata", without("zero-on-free", "--slots", "1"))
def _(stage: Stage) -> Truth:
    if not stage.lab.load(requests=1, room=stage.room + 2).good:
        raise NotFiredError("the owner before it did not complete")
    tp = stage.pick()
    fault = stage.inject("--delay-metadata", "600s", *aimed(tp), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return Truth(("PD131", "PD107"), stage.room, (decode(tp),), (*HANGS, "PD131", "PD107"), parts=True)


@case("another request's room in the slot", "stale-metadata", plain)
def _(stage: Stage) -> Truth:
    if not stage.lab.load(requests=1, room=stage.room + 2).good:
        raise NotFiredError("the owner before it did not complete")
    tp = stage.pick()
    value = stage.random.choice(("any", str(stage.room + 2), str(stage.room + 4)))
    fault = stage.inject("--stale-metadata", value, *aimed(tp), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    codes = ("PD107", "PD131", "PD133")
    return Truth(codes, stage.room, (decode(tp),), (*HANGS, *codes), parts=True)


@case("a wrong room in the slot", "corrupt-room", plain)
def _(stage: Stage) -> Truth:
    before(stage)
    tp = stage.pick()
    fault = stage.inject("--corrupt-room", *aimed(tp), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    codes = ("PD107", "PD133")
    return Truth(codes, stage.room, (decode(tp),), (*HANGS, *codes), parts=True)


@case("a request that one rank lost, and no other is there", "lost request", plain)
def _(stage: Stage) -> Truth:
    before(stage)
    tp = stage.pick()
    stage.one(to="decode", lost_on=tp)
    other = decode(0 if tp else 1)
    stage.acts(
        "the room on the other rank alone",
        lambda: stage.room in _rooms(stage, other) and stage.room not in _rooms(stage, decode(tp)),
    )
    return Truth(("PD103",), stage.room, (decode(tp),), HANGS)


@case("a request that one rank lost, beside another", "lost request", plain)
def _(stage: Stage) -> Truth:
    before(stage)
    stage.one(to="decode", room=stage.room + 2)
    stage.waits("decode.transfer", room=stage.room + 2)
    tp = stage.pick()
    stage.one(to="decode", lost_on=tp)
    other = decode(0 if tp else 1)
    stage.waits("decode.transfer", other)
    return Truth(("PD104",), stage.room, (decode(tp),), (*HANGS, "PD143"))


@case(
    "a rank that is not told of a registration, old life cycle", "hide-registration",
    lambda n: dp2(n, "--force-query", "prefill,decode", "--without", "receiver"),
)  # fmt: skip
def _(stage: Stage) -> Truth:
    before(stage)
    tp = stage.pick()
    fault = stage.inject("--hide-registration", *aimed(tp), "--room", stage.room)
    stage.one(prefill_dp=0)
    stage.fired(fault)
    return Truth(("PD106",), stage.room, (decode(tp),), (*HANGS, "PD103", "PD104", "PD122"))


@case("an abort on one stage of prefill", "abort", stages)
def _(stage: Stage) -> Truth:
    before(stage)
    ranks = stage.n // 2
    fault = stage.inject("--abort", "--rank", "prefill:pp1", "--room", stage.room, ranks=ranks)
    seed = stage.random.randrange(1 << 30)
    stage.one(to="decode", seed=seed)
    stage.waits("decode.transfer")
    stage.one(to="prefill", seed=seed)
    stage.fired(fault)
    return Truth(("PD115", "PD116"), stage.room, ("prefill dp0 pp1 tp0",), (*HANGS, "PD143"))


@case("late metadata of one stage of decode", "delay-metadata", two)
def _(stage: Stage) -> Truth:
    before(stage)
    tp = stage.random.randrange(stage.n // 2)
    fault = stage.inject("--delay-metadata", "600s", "--rank", f"decode:pp1:tp{tp}", "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return Truth(("PD115",), stage.room, (decode(tp, 1),), (*HANGS, "PD102"))


@case(
    "a failed transfer that the later stage keeps",
    "lost message of a stage",
    lambda n: two(n, "--without", "transfer-drain"),
)
def _(stage: Stage) -> Truth:
    before(stage)
    stage.lab.load(requests=1, room=stage.room, to="decode", abort_after_s=0.5, seconds=20)
    stage.acts(
        "the room on the second stage alone",
        lambda: (
            (q := stage.lab.queues())
            and stage.room in q[decode(0, 1)]["decode.transfer"]
            and stage.room not in q[decode(0)]["decode.transfer"]
        ),
    )
    return Truth(("PD116",), stage.room, (decode(0, 1),), ("PD143", "PD141"))


@case("an orphan on the later stage", "lost message of a stage", lambda n: stages(n, "--without", "orphan-drain"))
def _(stage: Stage) -> Truth:
    before(stage)
    stage.lab.load(requests=1, room=stage.room, to="prefill", abort_after_s=0.5, seconds=20)
    first, second = "prefill dp0 pp0 tp0", "prefill dp0 pp1 tp0"
    stage.acts(
        "the room on the second stage alone",
        lambda: (
            (q := stage.lab.queues())
            and stage.room in q[second]["prefill.bootstrap"]
            and stage.room not in q[first]["prefill.bootstrap"]
        ),
    )
    return Truth(("PD152",), stage.room, (second,), ("PD116", "PD143", "PD141"))


def aborts(stage: Stage) -> Truth:
    """Have clients abort until the stages stand, which may never come: nobody chooses the moment."""
    stage.send(requests=900, concurrency=16, prompt_tokens=40, new_tokens=20, abort_after_s=0.1)
    stage.acts("stages that stand", lambda: stands(stage), 90)
    return Truth(("PD115",), also=(*HANGS, "PD113", "PD116", "PD143"), limit_s=30.0)


def stands(stage: Stage) -> bool:
    """Return whether the loop of a rank has not turned for 4 s, by its recording's own count."""
    before = turns(stage)
    time.sleep(4.0)
    return any(old == new for old, new in zip(before, turns(stage), strict=True))


def turns(stage: Stage) -> list[int]:
    """Return how many turns each rank has begun."""
    ranks = [one.label for one in stage.lab.processes if one.label.startswith(("prefill ", "decode "))]
    return [stage.lab.recording(label).ticks for label in ranks]


@case("aborts under load part the stages of prefill", "abort", stages)
def _(stage: Stage) -> Truth:
    return aborts(stage)


@case("aborts under load part the stages of both sides", "abort", two)
def _(stage: Stage) -> Truth:
    return aborts(stage)


# ---- a request waits -------------------------------------------------------------------------------------------------

STUCK = ("stuck", "--stuck-after", "3s")


def held(stage: Stage, *what: str) -> int:
    """Hold what one rank waits for; return its number."""
    tp = stage.pick()
    fault = stage.inject(*what, *aimed(tp), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return tp


@case("a status that does not come", "drop-status", plain, again=True)
def _(stage: Stage) -> Truth:
    tp = held(stage, "--drop-status")
    return Truth(("PD142",), stage.room, (decode(tp),))


@case("a status that comes late", "stall-transfer", plain, again=True)
def _(stage: Stage) -> Truth:
    tp = held(stage, "--stall-transfer", "600s")
    return Truth(("PD142",), stage.room, (decode(tp),))


@case("metadata that the gate waits for", "delay-metadata", plain, again=True)
def _(stage: Stage) -> Truth:
    tp = held(stage, "--delay-metadata", "600s")
    return Truth(("PD102",), stage.room, (decode(tp),), ("PD141", "PD148", "PD142"), ("diff-queues",))


@case("metadata that does not come, the gate waits", "drop-metadata", plain, again=True)
def _(stage: Stage) -> Truth:
    tp = held(stage, "--drop-metadata")
    return Truth(("PD141",), stage.room, (decode(tp),), ("PD102", "PD148", "PD142"), STUCK)


@case("a poll that says Transferring", "flip-poll", plain, again=True)
def _(stage: Stage) -> Truth:
    tp = held(stage, "--flip-poll", "Transferring")
    return Truth(("PD142", "PD141"), stage.room, (decode(tp),), ("PD141", "PD142"), STUCK)


@case("a poll that says Failed, and prefill is not told", "flip-poll", plain, again=True)
def _(stage: Stage) -> Truth:
    held(stage, "--flip-poll", "Failed")
    return Truth(("PD142",), stage.room, ("prefill dp0 pp0 tp0",))


@case("a request that reaches decode only", "lost request", plain, again=True)
def _(stage: Stage) -> Truth:
    stage.one(to="decode")
    stage.waits("decode.transfer")
    return Truth(("PD143",), stage.room, (decode(0),), ask=STUCK)


@case("a request that reaches prefill only", "lost request", plain, again=True)
def _(stage: Stage) -> Truth:
    stage.one(to="prefill")
    stage.waits("prefill.bootstrap", "prefill dp0 pp0 tp0")
    return Truth(("PD143",), stage.room, ("prefill dp0 pp0 tp0",), ask=STUCK)


@case("two rooms of one request id", "router", lambda n: plain(n, "--step", "decode=100ms"), again=True)
def _(stage: Stage) -> Truth:
    rid = f"same-{stage.room}"
    stage.send(requests=2, rids=(rid, rid), rooms=(stage.room, stage.room + 2), new_tokens=900)
    stage.acts("two of them on decode", lambda: {stage.room, stage.room + 2} <= _rooms(stage))
    return Truth(("PD147",), stage.room)


def _rooms(stage: Stage, rank: str = "decode dp0 pp0 tp0") -> set[int]:
    return {room for rooms in stage.lab.queues()[rank].values() for room in rooms}


@case("a room that is given twice", "duplicate-room", plain, sizes=(2, 4), again=True)
def _(stage: Stage) -> Truth:
    earlier = stage.room + 2
    stage.one(to="decode", room=earlier)
    stage.waits("decode.transfer", room=earlier)
    fault = stage.inject("--duplicate-room", earlier, "--rank", "decode:*", "--room", stage.room, ranks=stage.n)
    stage.one(to="decode")
    stage.fired(fault, stage.n)
    return Truth(("PD127",), earlier, (decode(0), decode(1)), ("PD143", "PD147"))


@case("a bootstrap address that nobody listens on", "router", plain, again=True)
def _(stage: Stage) -> Truth:
    stage.one(bootstrap="127.0.0.1:9")
    stage.waits("decode.pending")
    return Truth(("PD145",), stage.room, ask=("verify-routing",), also=("PD142",))


# ---- routing ---------------------------------------------------------------------------------------------------------

ROUTES = ("verify-routing",)


@case("a room against the formula", "router", lambda n: dp2(n, "--without", "dp-registration"), again=True)
def _(stage: Stage) -> Truth:
    stage.room += 1
    stage.one(prefill_dp=0)
    stage.waits("prefill.bootstrap", "prefill dp0 pp0 tp0")
    return Truth(("PD120",), stage.room)


QUERY = ("--force-query", "prefill,decode")


@case("a room that is registered under another rank", "misroute", lambda n: dp2(n, *QUERY), again=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--misroute", 1, "--rank", "prefill:dp0", "--room", stage.room)
    stage.one(prefill_dp=0)
    stage.fired(fault)
    return Truth(("PD125",), stage.room, also=("PD143",))


@case("a registration that comes late", "delay-registration", lambda n: dp2(n, *QUERY), again=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--delay-registration", "600s", "--rank", "prefill:dp0", "--room", stage.room)
    stage.one(prefill_dp=0)
    stage.fired(fault)
    return Truth(("PD122", "PD124"), stage.room)


@case("a registration that one rank is not told", "hide-registration", lambda n: dp2(n, *QUERY), again=True)
def _(stage: Stage) -> Truth:
    tp = stage.pick()
    fault = stage.inject("--hide-registration", *aimed(tp), "--room", stage.room)
    stage.one(prefill_dp=0)
    stage.fired(fault)
    return Truth(("PD106", "PD122", "PD142", "PD141"), stage.room, also=("PD106", "PD122", "PD142", "PD141"))


@case("the query is forced on one side", "setting", lambda n: dp2(n, "--force-query", "decode"))
def _(stage: Stage) -> Truth:
    stage.one(prefill_dp=0)
    stage.waits("decode.pending")
    return Truth(("PD123",), also=("PD122",))


@case("forced, and never registered", "setting", lambda n: dp2(n, *QUERY, "--without", "register-every-room"))
def _(stage: Stage) -> Truth:
    stage.one(prefill_dp=0)
    stage.waits("decode.pending")
    return Truth(("PD124",), stage.room)


@case("the bootstrap server has forgotten a room", "restart", lambda n: dp2(n, "--load-balance", "total_requests"))
def _(stage: Stage) -> Truth:
    stage.lab.load(requests=4)
    stage.one(to="prefill", prefill_dp=0)
    stage.waits("prefill.bootstrap", "prefill dp0 pp0 tp0")
    stage.labs.cli("lab", "restart", "bootstrap")
    stage.one(to="decode")
    stage.waits("decode.pending")
    return Truth(("PD122",), stage.room, also=("PD145", "PD143"))


# ---- processes -------------------------------------------------------------------------------------------------------


def busy(stage: Stage, **how: object) -> None:
    """Have a load go on, and wait until decode has some of it."""
    stage.send(**{"requests": 0, "concurrency": stage.random.choice((2, 4, 8)), "aborts": False, **how})
    stage.acts("a request of the load", lambda: any(stage.lab.queues()["prefill dp0 pp0 tp0"].values()))


def gone(stage: Stage, *labels: str) -> None:
    """Wait for the end of processes."""
    those = [stage.lab.process(label) for label in labels]
    stage.acts(f"the end of {labels}", lambda: not any(one.alive for one in those))


PATIENT = ("--waiting-timeout", "10m", "--bootstrap-timeout", "10m", "--heartbeat", "10m")


def ends(stage: Stage, side: str, command: str) -> Truth:
    """Have one rank end under load."""
    busy(stage)
    label = f"{side} dp0 pp0 tp{stage.pick()}"
    stage.labs.cli("lab", command, label)
    gone(stage, label)
    return Truth(("PD113",), ranks=(label,), also=("PD112", "PD143", "PD142", "PD145", "PD144"))


@case("a rank of prefill is killed", "kill", lambda n: both(n, *PATIENT), sizes=(2, 4))
def _(stage: Stage) -> Truth:
    return ends(stage, "prefill", "kill")


@case("a rank of decode is killed", "kill", lambda n: plain(n, *PATIENT))
def _(stage: Stage) -> Truth:
    return ends(stage, "decode", "kill")


@case("a scheduler raises", "crash", lambda n: plain(n, *PATIENT))
def _(stage: Stage) -> Truth:
    return ends(stage, "decode", "crash")


def stops(stage: Stage, label: str) -> Truth:
    """Stop one rank."""
    stage.labs.cli("lab", "kill", label, "--signal", "STOP")
    stage.stopped = label
    stage.fired_at = time.monotonic()
    return Truth(("PD114",), ranks=(label,), also=(*HANGS, "PD145", "PD143"), silent=True)


@case("a rank of decode is stopped", "stop", plain, again=True)
def _(stage: Stage) -> Truth:
    if stage.random.random() < 0.5:
        busy(stage)
    return stops(stage, decode(stage.pick()))


@case("a stage is stopped", "stop", stages, again=True)
def _(stage: Stage) -> Truth:
    busy(stage)
    return stops(stage, f"prefill dp0 pp1 tp{stage.random.randrange(stage.n // 2)}")


@case("prefill was replaced behind its address", "restart", lambda n: plain(n, "--heartbeat", "10m"))
def _(stage: Stage) -> Truth:
    if not stage.lab.load(requests=4).good:
        raise NotFiredError("the load before it did not complete")
    stage.labs.cli("lab", "restart", "prefill")
    stage.one()
    stage.waits("decode.transfer")
    return Truth(("PD144",), also=("PD143", "PD142"))


@case("the bootstrap server is dead", "kill", plain)
def _(stage: Stage) -> Truth:
    stage.labs.cli("lab", "kill", "bootstrap")
    stage.one()
    stage.waits("decode.pending")
    return Truth(("PD145",), also=("PD142", "PD112"))


@case(
    "two prefill servers, one bootstrap server", "setting", lambda n: plain(n, "--prefills", "2", "--shared-bootstrap")
)
def _(stage: Stage) -> Truth:  # noqa: ARG001
    return Truth(("PD137",))


@case(
    "the sides have different settings",
    "setting",
    lambda n: plain(n, "--prefill-set", "kv_cache_dtype=fp8_e5m2"),
)
def _(stage: Stage) -> Truth:  # noqa: ARG001
    return Truth(("PD135",))


@case("an abort ends a service thread", "lost thread", lambda n: plain(n, "--without", "aborts"))
def _(stage: Stage) -> Truth:
    before(stage)
    stage.lab.load(requests=1, room=stage.room, to="decode", abort_after_s=0.5, seconds=20)
    return Truth(("PD117",), ranks=("prefill dp0 pp0 tp0",), also=("PD153",))


@case("decode is full", "full", lambda n: plain(n, "--kv-tokens", "400", "--step", "decode=300ms"), again=True)
def _(stage: Stage) -> Truth:
    stage.send(requests=0, concurrency=6, prompt_tokens=100, new_tokens=90)
    stage.acts("a request that waits for space", lambda: stage.lab.queues()[decode(0)]["decode.prealloc"])
    return Truth(("PD140",), ask=("stuck",))


@case("the batch is full", "full", lambda n: plain(n, "--max-running", "2", "--step", "decode=300ms"), again=True)
def _(stage: Stage) -> Truth:
    stage.send(requests=0, concurrency=5, new_tokens=200)
    stage.acts("requests that wait for a place", lambda: len(stage.lab.queues()[decode(0)]["waiting"]) >= 2)
    return Truth(("PD146",), ask=("stuck",))


# ---- twins: nothing is wrong -----------------------------------------------------------------------------------------


@case("a busy lab", "healthy", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    busy(stage, new_tokens=stage.random.choice((4, 40, 200)))
    return Truth()


@case("an idle lab", "healthy", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    before(stage)
    return Truth()


@case("a rank comes late to its polls", "skew-poll", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--skew-poll", f"{stage.random.choice((50, 200, 500))}ms", *aimed(stage.pick()))
    busy(stage)
    stage.fired(fault)
    return Truth()


@case("metadata comes a little late, the gate waits", "delay-metadata", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--delay-metadata", f"{stage.random.choice((100, 400, 1000))}ms", *aimed(stage.pick()))
    busy(stage)
    stage.fired(fault)
    return Truth()


@case("transfers are slow", "stall-transfer", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--stall-transfer", f"{stage.random.choice((200, 600, 1500))}ms", *aimed(stage.pick()))
    busy(stage)
    stage.fired(fault)
    return Truth()


@case("a transfer fails, and all ranks fail it", "fail-transfer", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--fail-transfer", *aimed(stage.pick()), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return Truth()


@case("an abort on one rank, and all ranks fail it", "abort", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    fault = stage.inject("--abort", *aimed(stage.pick()), "--room", stage.room)
    stage.one()
    stage.fired(fault)
    return Truth()


@case("one missed heartbeat", "silence-heartbeat", lambda n: plain(n, "--heartbeat", "2s"), again=True, twin=True)
def _(stage: Stage) -> Truth:
    stage.lab.load(requests=2)
    fault = stage.inject("--silence-heartbeat", "1ms", *aimed(stage.pick()))
    stage.fired(fault)
    return Truth()


@case("clients abort", "healthy", lambda n: plain(n, "--kv-tokens", "2048", "--slots", "32"), again=True, twin=True)
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=32, prompt_tokens=100, new_tokens=60, abort_after_s=0.4)
    return Truth()


@case(
    "answers outgrow the pool",
    "healthy",
    lambda n: plain(n, "--kv-tokens", "768", "--step", "decode=20ms"),
    again=True,
    twin=True,
)
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=12, prompt_tokens=40, new_tokens=150)
    return Truth()


@case("stages work", "healthy", stages, again=True, twin=True)
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=8, prompt_tokens=40, new_tokens=20)
    return Truth()


@case("stages of both sides work", "healthy", two, again=True, twin=True)
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=8, prompt_tokens=40, new_tokens=20)
    return Truth()


@case("clients try again", "healthy", plain, again=True, twin=True)
def _(stage: Stage) -> Truth:
    stage.send(requests=1, room=stage.room, rids=(f"first-{stage.room}",), new_tokens=1500, abort_after_s=0.2)
    stage.send(requests=1, room=stage.room + 2, rids=(f"again-{stage.room}",), new_tokens=60)
    busy(stage)
    return Truth()


@case(
    "dp ranks meet in each turn", "healthy", lambda n: ("--decode", f"dp=2,tp={n // 2}", "--dp-attention"),
    sizes=(2, 4), again=True, twin=True,
)  # fmt: skip
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=stage.random.choice((1, 8)), new_tokens=40)
    return Truth()


@case("servers are restarted, with nothing in flight", "restart", plain, sizes=(2, 4), again=True, twin=True)
def _(stage: Stage) -> Truth:
    for server in ("prefill", "decode"):
        stage.labs.cli("lab", "restart", server)
    if not stage.lab.load(requests=4).good:
        raise NotFiredError("the load after it did not complete")
    return Truth()


@case("a long forward on prefill", "healthy", lambda n: plain(n, "--step", "prefill=8s"), again=True, twin=True)
def _(stage: Stage) -> Truth:
    busy(stage, concurrency=4)
    return Truth()


@case("a slow bootstrap server", "healthy", lambda n: plain(n, "--slow-bootstrap", "1s"), again=True, twin=True)
def _(stage: Stage) -> Truth:
    stage.send(requests=0, concurrency=3)
    return Truth()
