"""Why a request waits for what will not come, and what to do about it: by how the other side ended it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pdctl.probes.queues.formatting import names
from pdctl.probes.stuck.handshake import lacks_addresses
from pdctl.probes.stuck.model import Last, Waiting
from pdctl.probes.stuck.sides import COMPUTED, Side
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER, KVPoll, poll_name
from pdctl.protocol.notes import ABORTED, LOST, SESSION_LOST, TOLD_FAILED

BOOTSTRAP_TIMEOUT = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
GIVEN_UP, FAILED = "given up", "failed"
FIRST, BEHIND = "first in line for space", "waits for space"
"""Notes of requests that wait until decode has space for them."""
AFTER_RETRACTED, NO_SLOT = "retracted requests come first", "waits for a metadata slot"
"""Notes of requests that decode does not look at, and of those that prefill computes once it has a slot for them."""
NOT_TOLD = "recordings do not tell what ends it"
"""Note of requests whose time-out only a live rank could tell."""


class Advice(NamedTuple):
    """Why a request waits, in one sentence or "", and the next step, "" for the usual one. kind: of requests that share it."""

    kind: str = ""
    why: str = ""
    next_step: str = ""


def ended_as(request: Waiting, other: Sequence[Side]) -> Last | None:
    """Return how the request ended on the other side, None where it is not known to have ended there."""
    last = [look.last[request.room] for side in other for look in side.looks if request.room in look.last]
    return min((one for one in last if one.ended and one.came), key=lambda one: one.age_s, default=None)


def lost(request: Waiting, last: Last | None, other: Sequence[Side] = ()) -> Advice:
    """Return why this side has not heard that the other side has ended ``request``. last: how that was, None not known."""
    if last is None:
        return _message(request)
    untold = request.role == "decode" and last.what != "Success" and any(map(_tells_no_failure, other))
    if last.what != "Success" and "timed out" in last.reason:
        if request.role == "prefill":
            return Advice(
                "decode's time-out",
                "Decode gave it up by its own time-out.",
                f"{_abort(request)} Find out why prefill had not sent it by then: pdctl story ROOM.",
            )
        if "Bootstrapping" in last.reason:
            return _given_up(request)
    if last.what != "Success" and "abort" in f"{last.what} {last.reason}".lower():
        side = OTHER[request.role]
        if side == "decode" and last.reason.startswith(ABORTED):  # the engine has one reason for both
            return Advice(
                "abort",
                "An abort ended it on decode: a client's, or decode's own after a bootstrap server had not answered.",
                f"{_abort(request)} pdctl verify-routing shows whether its bootstrap server answers. Where it does, whoever"
                " aborts a request has to tell both servers.",
            )
        return Advice(
            "abort",
            f"An abort ended it on {side}.",
            f"{_abort(request)} Whoever aborts a request has to tell both servers"
            + (
                f": {_UNTOLD}."
                if untold
                else f". If {request.role} was told, look for what loses messages between the two."
            ),
        )
    if request.role == "prefill":
        return _ended_on_decode(request, last)
    if last.reason.startswith(SESSION_LOST):
        return Advice(
            "session",
            "Prefill took this decode rank for dead after a transfer to it had failed.",
            f"{_abort(request)} Look at the network between the two. Prefill fails each request to this rank until it connects"
            " anew or is seen to answer: where that lasts, restart this decode server.",
        )
    if untold:
        return Advice(
            "untold",
            f"{_UNTOLD[0].upper()}{_UNTOLD[1:]}.",
            f"{_abort(request)} pdctl story ROOM shows why it failed. Prefill tells decode of it from SGLang 0.5.22 on.",
        )
    return _message(request)


def _ended_on_decode(request: Waiting, last: Last) -> Advice:
    """Return why prefill still has what decode has ended, by no time-out and no abort: it need not have been told."""
    if last.what == "Success":
        return Advice(
            "received",
            "Decode has all of it: prefill's own transfer has not ended.",
            f"{_abort(request)} pdctl check tells whether a transfer thread of prefill has ended, pdctl story ROOM what each"
            " rank sent.",
        )
    if last.reason.startswith(TOLD_FAILED):
        return Advice(
            "told",
            "A rank of prefill told decode that it had failed it, and prefill has it still.",
            f"{_abort(request)} pdctl diff-queues shows whether prefill's ranks go on together, pdctl story ROOM which of them"
            " failed it.",
        )
    why = "Decode failed it by itself."
    if last.reason.startswith(LOST):
        why = "Decode gave it up since it could not reach prefill."
    return Advice(
        "failed on decode",
        why,
        f"{_abort(request)} Do not wait for a message: with Mooncake, SGLang up to 0.5.12.post1 tells prefill nothing of what"
        " decode fails. pdctl story ROOM shows why it failed, pdctl verify-routing whether decode reaches prefill.",
    )


_UNTOLD = "in this version prefill does not tell decode of a request that it failed"


def _tells_no_failure(side: Side) -> bool:
    return any("failures" in look.identity.lacks for look in side.looks)


def _given_up(request: Waiting) -> Advice:
    """Return what to say where prefill's time-out in Bootstrapping ended the request: it waited for decode's addresses."""
    sent_s, ended_s = clock_s(request), request.peer_ended_s or 0.0
    if sent_s is not None and sent_s > ended_s:
        return Advice(
            "addresses lost",
            f"Decode had sent its addresses {seconds(sent_s - ended_s)} before that, and prefill did not get them.",
            f"{_abort(request)} Look for what loses messages from decode to prefill, and whether prefill is the server that"
            " decode asks: pdctl verify-routing ROOM.",
        )
    late = ""
    if request.note in (FIRST, BEHIND):
        late = ", for want of space"
    elif sent_s is not None:
        late = f": it sent them {seconds(ended_s - sent_s)} later"
    return Advice(
        GIVEN_UP,
        f"Decode had not sent its addresses by then{late}.",
        f"{_abort(request)} Prefill will not send it any more. Add decode capacity, admit less, or raise"
        f" {BOOTSTRAP_TIMEOUT} on prefill.",
    )


def _message(request: Waiting) -> Advice:
    other = OTHER[request.role]
    return Advice("message", "", f"{_abort(request)} Then look for what loses messages from {other} to {request.role}.")


def too_late(request: Waiting) -> Advice:
    """Return what to do about a request that came before the process on the other side, which has never had it."""
    return Advice(
        "too late",
        "If a process before had it, it is lost.",
        f"Send the request again. {_abort(request)}",
    )


def _abort(request: Waiting) -> str:
    ends = request.left_s is not None and request.left_s > 0 and request.note != AFTER_RETRACTED
    wait = f", or wait for {request.cover}" if ends else ""
    return f"Abort the request on {request.role} (POST /abort_request with its rid){wait}."


def clock_s(request: Waiting) -> float | None:
    """Return for how long the time-out of a request has been running, None where none runs."""
    return None if request.left_s is None or request.limit_s is None else request.limit_s - request.left_s


def unheard(request: Waiting, other: Sequence[Side]) -> Advice:
    """Return why decode waits for prefill while that waits for decode's addresses, nothing where it does not."""
    there = {(queue, state) for side in other for _, queue, state in side.places(request.room)}
    if not lacks_addresses(there) or any(one.queue != "decode.transfer" for one in request.ranks):
        return Advice()
    return Advice(
        "addresses unheard",
        "Decode has sent its addresses, and prefill still waits for them: they were lost, or went to another process.",
        f"{_abort(request)} pdctl verify-routing ROOM shows where decode sends them, and who listens there.",
    )


def overdue_s(request: Waiting) -> float:
    """Return since when the time-out of a request should have ended it, seconds; 0.0 where it is not due."""
    return 0.0 if request.left_s is None else max(0.0, -request.left_s)


def failed(request: Waiting) -> Advice:
    """Return why a request waits that has failed on some rank that has it: nobody takes it off."""
    ranks = names([rank for one in request.ranks if one.state == poll_name(KVPoll.FAILED) for rank in one.ranks])
    return Advice(
        FAILED,
        f"It has failed on {ranks}, and was not taken off. No time-out and no abort does more.",
        "pdctl diff-queues shows whether the ranks of its group go on together, pdctl stacks where they are.",
    )


def orphan(request: Waiting, side: Side, first: Sequence[Side]) -> Advice:
    """Return what to do with a request of a later pipeline stage that the first one has no more; first: sides of that one.

    A later stage carries out only what the first has passed on, so an abort does not end it.
    """
    key = request.room, request.rid
    asked = [one for one in first if one.answered]
    if not first or len(asked) < len(first) or any(key in one.requests or key in one.requests_before for one in asked):
        return Advice()
    return Advice(
        "orphan",
        "The first stage does not have it.",
        f"Restart this {side.role} server. An abort does not end it: this stage carries out only what the first one passes on.",
    )


def complete(request: Waiting, side: Side) -> Advice:
    """Return why a request waits whose transfer is complete on every rank that waits with it."""
    if request.role == "prefill":
        return Advice(
            "sent",
            "Its transfer is complete here, and it was not let go. No time-out covers that.",
            "pdctl diff-queues shows whether the ranks of its group go on together, pdctl stacks where they are.",
        )
    waits = [rank for one in request.ranks if one.queue not in COMPUTED for rank in one.ranks]
    took = [rank for one in request.ranks if one.queue in COMPUTED for rank in one.ranks]
    seen = {f"tp{each.identity.tp}": each.landed[request.room] for each in side.looks if request.room in each.landed}
    has = [rank for rank in waits if seen.get(rank)]
    lacks = [rank for rank in waits if rank in seen and not seen[rank]]
    if took:
        landed = f" Its metadata has landed on {names(has)}." if has else ""
        return Advice(
            "taken by some",
            f"Its transfer is complete here: {names(took)} took it on and {names(waits)} did not.{landed}",
            "pdctl diff-queues names the round in which they parted. If their group stands, restart this decode server.",
        )
    if len(has) + len(lacks) < len(waits):
        return Advice(
            "",
            "Its transfer is complete here, and it was not taken on. No time-out covers that.",
            "pdctl dump metadata shows whether its metadata has landed, pdctl diff-queues whether the group goes on.",
        )
    if not lacks:
        return Advice(
            "landed",
            f"Its transfer is complete and its metadata has landed on {names(has)}, and yet it was not taken on. No time-out"
            " covers that.",
            "pdctl diff-queues shows whether the ranks of its group go on together, pdctl stacks where they are.",
        )
    part = f"; it has landed on {names(has)} and not on {names(lacks)}" if has else ""
    return Advice(
        "metadata",
        f"Its transfer is complete here: it waits for its metadata{part}. No time-out covers that.",
        "pdctl story ROOM shows what prefill wrote. Abort the request (POST /abort_request with its rid) to get back what it"
        " holds.",
    )


def standing(side: Side) -> str:
    """Return what to do instead of an abort where the loop of a side did not turn between the looks, "" where it did."""
    for look in side.looks:
        if look.state == "live" and look.unturned_s is not None and look.unturned_s > 0:
            return (
                f"pdctl stacks shows where {side.rank(look)} is: its loop has not turned in"
                f" {seconds(look.unturned_s)}, and only a loop that turns carries out an abort."
            )
    return ""
