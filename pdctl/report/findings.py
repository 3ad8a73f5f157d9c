"""What pdctl can find: one catalogue of codes, each with its meaning, where it is known from and what to do next.

A judge makes a Finding from a code and the evidence; the text that is the same every time stands here once.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(str, Enum):
    """How bad. INFO never changes an exit code."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Code(msgspec.Struct, frozen=True):
    """A kind of finding. versions: engine versions it is known for, in words. reference: the public report or fix.

    evidence: what a finding of this kind shows, and rests on.
    """

    code: str
    level: Level
    title: str
    meaning: str
    versions: str = ""
    reference: str = ""
    next_step: str = ""
    evidence: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One finding. summary: what was found, in one or two sentences that name ranks and rooms.

    evidence: what it rests on, one statement a line. group: which group it is about. rooms, ranks: concerned.
    """

    code: str
    level: Level
    summary: str
    group: str = ""
    rooms: tuple[int, ...] = ()
    ranks: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    cause: str = ""
    versions: str = ""
    next_step: str = ""


_CODES = (
    Code(
        "PD101",
        Level.ERROR,
        "metadata landed on one rank before the other, and nothing held it back",
        "The reduced poll said Success on every rank, but that only means that the KV cache arrived. One rank found its"
        " metadata row written and took the request out of its queue; another still read 0 and kept it. From the next"
        " round on their lists differ in length: the group hangs, aborts, or reduces one request's poll with another's."
        " The collective they hang in is a victim, often one of the model.",
        "SGLang up to 0.5.12.post1; a gate before the reduction prevents it from 0.5.13 on (PR 26394)",
        "sgl-project/sglang PR 26394",
        "Upgrade decode to 0.5.13 or newer. Restart this decode server now: its group can't recover by itself.",
        evidence="The first round in which the ranks of the group differ; for each rank what it did with the room"
        " there (committed, kept), the slot and the room found in it; when the metadata landed, where that was"
        " seen; the call each rank sits in now.",
    ),
    Code(
        "PD102",
        Level.INFO,
        "the metadata gate is holding requests until every rank has their metadata",
        "A rank's transfer is complete but its metadata row still reads 0; the engine's gate lowers the poll to"
        " Transferring, so that no rank commits before all can. This is the fix at work, not a fault.",
        "SGLang 0.5.13 and newer",
        "sgl-project/sglang PR 26394",
        "Nothing, unless it lasts: then look at the prefill side's metadata writes.",
        evidence="Rooms whose own poll is Success and whose gated poll is Transferring, on which ranks, for how many"
        " rounds.",
    ),
    Code(
        "PD103",
        Level.ERROR,
        "skipped collective: one rank's list was empty where another's was not",
        "A rank with an empty queue returns before the collective. Another rank of the group had a request in the same"
        " turn and entered it; from then on its collective is paired with the wrong one of its peers.",
        "every version: the poll sites do not check that the lists agree",
        "sgl-project/sglang issues 37909, 36928",
        "Find why the request is on one rank only (an abort or a time-out that reached one rank is the commonest"
        " cause).",
        evidence="The round that one rank entered and whose turn another skipped; the rooms polled in it; the"
        " collectives the ranks sit in now.",
    ),
    Code(
        "PD104",
        Level.ERROR,
        "the ranks of a group polled different requests in the same round",
        "The reduction is positional: with different lists one request's poll is reduced with another's, and"
        " with different"
        " lengths Gloo hangs until its time-out or kills the process.",
        "every version: the poll sites do not check that the lists agree",
        "sgl-project/sglang issues 37909, 36928",
        "Look for what took the request off one rank: an abort, a time-out, a failure seen by one rank only.",
        evidence="The first round whose lists differ, how long each rank's was, and for each room that is missing"
        " somewhere which ranks have it and where it is on the others now.",
    ),
    Code(
        "PD105",
        Level.ERROR,
        "the ranks of a group polled the same requests in a different order",
        "The reduction is positional, so requests get each other's polls although the lists are equally long."
        " Nothing hangs;"
        " requests commit too early or fail for no reason of their own.",
        "every version: the poll sites do not check the order",
        "",
        "Look for what orders the queue differently per rank (priorities, retractions, late arrivals).",
        evidence="The first round whose lists hold the same rooms and yet have different hashes.",
    ),
    Code(
        "PD106",
        Level.ERROR,
        "a request waits for its prefill dp rank on one rank and is in the handshake on another",
        "Each decode rank asked the bootstrap server by itself which prefill dp rank owns the room; one asked"
        " before it was"
        " registered and one after, so the request is on their queues at different times.",
        "SGLang between 0.5.9 and 0.5.10.post1; later versions enqueue on every rank at once (PR 21299)",
        "sgl-project/sglang PR 21299",
        "Upgrade decode; until then use follow_bootstrap_room load balancing, which needs no query.",
        evidence="The first round that differs, and the room's queue on each rank: as the rank says now, or by the"
        " last time it was recorded entering one.",
    ),
    Code(
        "PD107",
        Level.ERROR,
        "a metadata slot held another request's room on one rank",
        "The gate tests only whether the slot reads 0. A slot that still holds its previous owner's room passes"
        " it, and the"
        " rank that finds the wrong room aborts the request while its peers commit it.",
        "SGLang up to 0.5.12.post1 does not zero slots when it frees them",
        "sgl-project/sglang issue 27374",
        "If the room found is that of a finished request, the slot is stale, not corrupt. Upgrade decode to"
        " 0.5.13 or newer.",
        evidence="The slot and the room found in it, on each rank, in the round in which their actions differ.",
    ),
    Code(
        "PD108",
        Level.ERROR,
        "the ranks of a group did different things with the same reduced polls",
        "All ranks got the same reduced polls in the same round and yet one kept a request that another let go.",
        "",
        "",
        "Compare what each rank knew of the request in that round (above).",
        evidence="The round with equal lists and different actions, and what each rank saw of the room in it: polls,"
        " slot, room found.",
    ),
    Code(
        "PD110",
        Level.WARNING,
        "one rank keeps its group waiting",
        "The others have entered a round and wait for it. Its lists agree with theirs so far: it is late,"
        " stopped, dead or"
        " stuck elsewhere, not out of step.",
        "",
        "",
        "See what the late rank is doing (last lines above). A stopped process (state T) needs SIGCONT; a dead"
        " one a restart.",
        evidence="The round the others have entered and how long ago; the late rank's state and where its main thread"
        " is.",
    ),
    Code(
        "PD111",
        Level.WARNING,
        "the ranks' queues differ, but there are no rounds to tell skew from divergence",
        "Without recordings only moments can be compared. The difference stayed the same over several looks"
        " while nothing"
        " progressed, so it is probably real.",
        "",
        "",
        "Switch recording on (see why it is off: pdctl ranks) and look again.",
        evidence="The rooms in each rank's queue, as they were now.",
    ),
    Code(
        "PD112",
        Level.WARNING,
        "a rank does not answer, or is gone",
        "A rank that its server should have gives no answer: its process has ended, is stopped, holds the GIL for ever, or"
        " loaded no agent. What it believes is known from its recording at best.",
        "",
        "",
        "pdctl ranks shows each rank's state and reason; a stopped process (state T) needs SIGCONT, a dead one a restart.",
        evidence="The registration that the rank left or that its peers' sizes imply, and why there was no answer.",
    ),
    Code(
        "PD120",
        Level.ERROR,
        "decode expects a room from another prefill dp rank than the one that has it",
        "Under follow_bootstrap_room decode takes a room to be on room % dp_size and does not ask. A router"
        " that sent it to"
        " another dp rank (routed_dp_rank, a session that sticks) breaks that assumption, unless prefill"
        " notices: the prefill"
        " rank waits for decode's addresses, decode waits for another rank to answer, and neither is told.",
        "silent in SGLang up to 0.5.10.post1; from 0.5.11 on prefill fails the room at once (PR 22901)",
        "sgl-project/sglang PR 22901",
        "Let the router choose dp rank room % dp_size, or upgrade prefill and set"
        " SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 on both sides. Abort the room: it can't be saved.",
        evidence="The dp rank of the prefill rank that has the room waiting, room % dp_size, what the bootstrap"
        " server has"
        " registered for it, and the dp rank that each decode rank asked.",
    ),
    Code(
        "PD121",
        Level.WARNING,
        "the engine failed a room because it was routed against room % dp_size",
        "This is the engine's own check (follow_bootstrap_room conflict), not pdctl's discovery: prefill got a"
        " room on another"
        " dp rank than the one decode will ask, and failed it at once instead of letting both sides wait. Where"
        " nobody tells"
        " decode, it still waits.",
        "SGLang 0.5.11 and newer (PR 22901)",
        "sgl-project/sglang PR 22901",
        "Let the router choose dp rank room % dp_size, or set"
        " SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 on both sides"
        " (see PD124 for versions in which that has a hole).",
        evidence="The reason that the prefill rank recorded for the failure, its dp rank, room % dp_size, and"
        " which decode"
        " ranks still have the room.",
    ),
    Code(
        "PD122",
        Level.ERROR,
        "decode asks for a room that the bootstrap server does not know",
        "Decode can't tell by itself which prefill dp rank has the room and asks the bootstrap server, again"
        " and again. A prefill"
        " rank holds the room, and its registration is not there: it was never sent, could not be delivered,"
        " has expired, or"
        " went with a server that was restarted. No time-out covers this wait.",
        "",
        "sgl-project/sglang PR 21299",
        "Look into prefill's log for `Failed to register prefill dp_rank`. Abort the room: it is registered"
        " once and never again.",
        evidence="The bootstrap server's own answer for the room, the prefill rank that has it waiting, the"
        " decode ranks that"
        " ask, and when prefill registered it, where its recording shows that.",
    ),
    Code(
        "PD123",
        Level.ERROR,
        "FORCE_QUERY is in force on one side only",
        "With SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK decode asks the bootstrap server for every"
        " room, and prefill"
        " registers rooms although load balancing follows them. On decode alone: it asks for rooms that nobody"
        " registers, and"
        " every one stays pending. On prefill alone: a room that conflicts with the formula is registered"
        " instead of failed, and"
        " nobody asks.",
        "SGLang 0.5.11 and newer know the variable",
        "sgl-project/sglang PR 22901",
        "Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK on both sides or on neither, and restart the"
        " side that changes.",
        evidence="The variable in the environment of ranks of both sides, whether each side's code heeds it,"
        " prefill's dp size"
        " and load balancing; rooms that wait because of it.",
    ),
    Code(
        "PD124",
        Level.ERROR,
        "known hole: with FORCE_QUERY on both sides, a room that does not conflict is never registered",
        "Decode asks the bootstrap server for every room; prefill registers only those that were routed against"
        " room % dp_size. A room on the very rank that the formula names stays pending for ever. Told by the"
        " code that the"
        " prefill rank has loaded, not by its version.",
        "SGLang 0.5.11 to 0.5.18; 0.5.23 registers every room",
        "sgl-project/sglang PR 22901",
        "Unset SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK on both sides, or upgrade prefill to a version"
        " that registers"
        " every room.",
        evidence="The room is pending on decode, not registered at the bootstrap server, held by the prefill dp"
        " rank that the"
        " formula names; the variable is set on both sides; prefill's code compares before it looks at the variable.",
    ),
    Code(
        "PD125",
        Level.ERROR,
        "a room is registered under another prefill dp rank than the one that has it",
        "Decode goes by the registration and asks a prefill rank that has never heard of the room, while the"
        " rank that has it"
        " waits to be asked.",
        "",
        "",
        "If a fault (--misroute) is in place, heal it. Otherwise look for two requests with one room, or a"
        " prefill whose dp ranks"
        " are numbered differently in its router. Abort the room.",
        evidence="The bootstrap server's answer for the room, the dp rank of the prefill rank that has it"
        " waiting, and the decode"
        " ranks that go by that answer.",
    ),
    Code(
        "PD126",
        Level.WARNING,
        "a registration is about to expire before decode has used it",
        "The bootstrap server drops registrations that are older than"
        " SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL (120 s). Prefill registers a room once. A"
        " decode rank that asks"
        " after that never learns where the room is.",
        "every version",
        "",
        "Find out why decode has not asked yet (not arrived, or can't reach the bootstrap server: see the"
        " rows). Raise the interval"
        " on prefill where decode is this far behind as a rule.",
        evidence="When prefill registered the room, by its recording; that the bootstrap server still has it;"
        " that no decode rank"
        " has been told; the interval in prefill's environment.",
    ),
    Code(
        "PD127",
        Level.ERROR,
        "two requests on one side have the same room",
        "A room stands for one request: its status, its slot's owner and its registration are kept by room."
        " With two, one gets"
        " the other's addresses or ends with it.",
        "every version: nothing checks that a room is new, except 0.5.23 where it defers bootstrap",
        "",
        "Look at the router: it has to draw rooms at random from 63 bits, and to give a retry a new room.",
        evidence="The room with the ids of the requests that have it, and the ranks each is on.",
    ),
    Code(
        "PD128",
        Level.ERROR,
        "decode still goes by what an earlier prefill server told it",
        "A decode rank asks a bootstrap server for the prefill server's sizes once and keeps the answer. The"
        " server behind that"
        " address now tells something else: it was restarted with other settings, and this rank has not"
        " noticed. It will compute"
        " wrong dp ranks, or wrong places for the KV.",
        "every version",
        "",
        "Restart decode, or stop prefill for longer than decode's heartbeat takes to fail (10 s by default), so"
        " that it asks again.",
        evidence="The value each decode rank was told when it first asked, and the bootstrap server's answer now.",
    ),
    Code(
        "PD129",
        Level.ERROR,
        "the bootstrap server sends decode to a port where the prefill rank does not listen",
        "Decode reaches a prefill rank at the address that the bootstrap server has for it. This one has"
        " another, or none: the rank"
        " was restarted and not registered again, or two prefill servers share one bootstrap port.",
        "every version",
        "",
        "Restart the prefill server as a whole, and give each prefill server its own --disaggregation-bootstrap-port.",
        evidence="The port that the live prefill rank listens on, and the one in the bootstrap server's answer"
        " for its place.",
    ),
    Code(
        "PD130",
        Level.WARNING,
        "metadata reaches this rank in a way that nothing protects",
        "The metadata tensors are on a GPU and are written asynchronously, so that one rank of a group can find its row"
        " written before another does; this rank's code has no gate that waits for all. Sooner or later a request commits on"
        " one rank and stays on the other, and the group hangs.",
        "SGLang 0.5.9 and 0.5.10.post1 with the memory pool INTRA_NODE_NVLINK; on the CPU and over TCP in 0.5.11 to"
        " 0.5.12.post1; on the GPU again from 0.5.13 on, where the gate covers it",
        "sgl-project/sglang PR 23252",
        "Upgrade decode to 0.5.13 or newer, or set SGLANG_MOONCAKE_SEND_AUX_TCP=1 on prefill until then.",
        evidence="The device of the tensors and the way of the rows, by what this rank's own send_aux does with the memory"
        " pool in use, and that its code has no gate.",
    ),
    Code(
        "PD131",
        Level.ERROR,
        "a metadata slot holds the room of its previous owner: stale, not corrupt",
        "Slots are not zeroed when they are freed, so a slot that was used before shows its previous owner's room until its"
        " new row is written. Its new owner is about to be taken over, or was decided on, while the old room stood there:"
        " the engine calls that metadata corruption and aborts the request on this rank alone.",
        "SGLang up to 0.5.12.post1 does not zero slots when it frees them; from 0.5.13 on a late write of the old request can"
        " do the same",
        "sgl-project/sglang issue 27374",
        "Find why the row came late (pdctl diff-queues, pdctl story ROOM). Upgrade decode to 0.5.13 or newer.",
        evidence="Slot, expected and found room, that the found room owned the slot before or has ended on this rank, and"
        " the recorded decision or two equal looks.",
    ),
    Code(
        "PD132",
        Level.ERROR,
        "two requests of one rank meet in a metadata slot",
        "A slot holds the room of another request of this rank that still waits for its own metadata, or two requests hold"
        " the same slot: a row went to the wrong slot, or a slot was given out twice.",
        "",
        "sgl-project/sglang issue 27374",
        "Restart this decode server: what its requests read can't be trusted. Keep the recordings (pdctl record).",
        evidence="The slot with the rooms and rids of both requests, at two looks.",
    ),
    Code(
        "PD133",
        Level.ERROR,
        "a metadata slot holds a room that does not belong there",
        "The room in the slot is not its owner's, and never owned this slot: somebody else wrote into this rank's memory (a"
        " prefill with addresses of an earlier start of this server, for one).",
        "",
        "sgl-project/sglang issue 27374",
        "See who knows the room (pdctl story ROOM), and whether the prefill server is older than this decode server.",
        evidence="Slot, expected and found room, which ranks know the room, and whether the recording reaches back far"
        " enough to say that this one does not.",
    ),
    Code(
        "PD134",
        Level.WARNING,
        "a rank's settings differ from those of its server",
        "The ranks of one server are started with the same settings. One that differs was started by hand, or on a node with"
        " another environment.",
        "",
        "",
        "Start the server anew with the same arguments and environment on every node.",
        evidence="The setting, and what each rank has.",
    ),
    Code(
        "PD135",
        Level.ERROR,
        "prefill and decode are set up in ways that do not go together",
        "Decode compares page size and KV cache type with what prefill's bootstrap server says and raises in its scheduler"
        " when they differ; other differences (layers, bytes of a token, transfer backend) are not compared by anybody and end"
        " as failed transfers or wrong KV.",
        "every version",
        "",
        "Start both servers with the same values of the settings named above.",
        evidence="The setting and its value on each side, of two servers that deal with each other.",
    ),
    Code(
        "PD136",
        Level.INFO,
        "prefill and decode are different versions of the engine",
        "It may work, since messages between the sides rarely change, but each side has its own protections: read a finding's"
        " versions for the side it is about.",
        "",
        "",
        "Nothing, unless something else is found.",
        evidence="The version of each side.",
    ),
    Code(
        "PD140",
        Level.INFO,
        "decode is full: requests wait for space",
        "Requests are admitted strictly in the order in which they came: the first one needs more KV tokens (or a slot, or a"
        " row for running requests) than are free, so that all behind it wait, too. It gets its space when running"
        " requests end. This is load, not a fault.",
        "",
        "sgl-project/sglang issue 31800",
        "Nothing, unless what holds the space is stuck itself (other findings say so). Add decode capacity, or admit less.",
        evidence="The room first in line with what it needs, and what is free on the rank that has least.",
    ),
    Code(
        "PD141",
        Level.WARNING,
        "nothing will end this wait",
        "The request is in a state that no time-out of this backend and version covers, it did not change between two looks,"
        " nothing ahead of it in its queue moved, and the other side is not computing it. It holds what it holds until"
        " somebody aborts it.",
        "SGLang up to 0.5.23 has no time-out for a room in decode.pending; with Mooncake, none for a transfer that has started",
        "sgl-project/sglang issue 31800",
        "pdctl story ROOM shows where it stopped. Abort the request (POST /abort_request with its rid) to get back what it"
        " holds.",
        evidence="Queue, state and age on every rank of the group, the other side's state for the same room, what it holds"
        " and how many slots are held this way.",
    ),
    Code(
        "PD142",
        Level.ERROR,
        "the other side has ended this request, and this side has not heard",
        "The other side is done with the room (its transfer succeeded or failed, and it let the request go), but the message"
        " that says so did not arrive here. This side waits until its time-out, where there is one, and holds its slot and KV"
        " meanwhile.",
        "every version: the status is sent once and never asked for",
        "sgl-project/sglang issues 36033, 35965",
        "Abort the request here, or wait for the time-out named above. Then look for what loses messages between the two"
        " sides.",
        evidence="How and when the room ended on the other side, by its recording; that this side's state stayed the same"
        " over two looks; which time-out covers it, and how long that still takes.",
    ),
    Code(
        "PD143",
        Level.WARNING,
        "the other side does not know this room",
        "A request needs both sides. This one has waited longer than a request takes to arrive there, and no rank of the other"
        " side has its room: it went to one side only, to another server, or the other side was restarted.",
        "",
        "sgl-project/sglang issues 36033, 35965",
        "Look at the router: did it send the request to both servers, and is the other server the same process as before?",
        evidence="The room's age here, and that every rank of the other side answered and has it in no queue.",
    ),
    Code(
        "PD150",
        Level.WARNING,
        "a metadata slot is taken and no request has it",
        "The slot was taken from the allocator, has not been given back, and no request in any queue, batch or put-off release"
        " of this rank holds it. It is lost until the server is restarted; when all are lost, no request gets one.",
        "",
        "",
        "pdctl story ROOM (of the room in the slot) shows how its request left. Restart the server before slots run out.",
        evidence="The slot, for how long it has been the same allocation without an owner, that the rank's loop went on"
        " meanwhile, and how many slots are left.",
    ),
    Code(
        "PD151",
        Level.WARNING,
        "KV space is taken and no request has it",
        "This rank has no request at all, and yet part of its KV pool is neither free nor in the prefix cache. It is lost"
        " until the server is restarted.",
        "",
        "",
        "Look for requests that failed or were lost shortly before the space went (pdctl story ROOM).",
        evidence="Size of the pool, what is free, evictable and protected, at every look of the watch, and that there was no"
        " request at any of them.",
    ),
    Code(
        "PD152",
        Level.ERROR,
        "a later pipeline stage keeps a failed request that the first stage has let go",
        "The first stage saw the failure a round earlier and removed the request. It passes on only requests of its own queue,"
        " and later stages look at no others, so this one stays in the bootstrap queue for ever: the gauge"
        " num_prefill_bootstrap_queue_reqs of this stage never returns to zero.",
        "SGLang up to 0.5.12.post1; drained from 0.5.13 on (issue 26912)",
        "sgl-project/sglang issue 26912",
        "Upgrade prefill to 0.5.13 or newer; a restart of the prefill server removes what is there now.",
        evidence="The request in the bootstrap queue of the later stage, Failed at every look, how long ago it failed, and that"
        " no queue of the first stage had it at any look while both stages went on.",
    ),
    Code(
        "PD153",
        Level.INFO,
        "a KV manager keeps rooms whose requests are gone",
        "Tables of the KV manager name rooms that no rank of either side has a request for. Engines leave some behind after"
        " aborts and failures, when a message about a room comes after the room was let go: a few bytes each, for ever. It"
        " matters only if it grows without end, or if rooms are used again.",
        "SGLang up to 0.5.23 (transfer_infos and request_status of aborted requests)",
        "",
        "Nothing. If the number grows fast, look for what aborts so many requests.",
        evidence="Table and rooms, that they were there at every look of the watch, and how many came during it.",
    ),
    Code(
        "PD160",
        Level.ERROR,
        "the ranks of a group stand in different collectives of it",
        "Collectives of a group are paired by their order: the n-th of one rank with the n-th of the others. These ranks"
        " are in different ones, so none of them can end: Gloo hangs until its time-out or kills a process for sizes that"
        " do not fit. Somewhere before, one of them did a collective more or less than the others.",
        "every version: nothing checks that ranks enter the same collective",
        "sgl-project/sglang issues 37909, 36928",
        "pdctl diff-queues names the round in which the ranks parted. Then restart this server: the group can't recover.",
        evidence="For each rank the operation, size and number of the collective its main thread is in, the same without a"
        " turn in between in at least three looks over at least two seconds. Numbers are those the group's backend counts."
        " Sends and receives are left out, and so are groups that have them. Where only the numbers differ, every rank of"
        " the group has to stand in one of its collectives.",
    ),
    Code(
        "PD161",
        Level.ERROR,
        "ranks wait for each other in collectives of different groups",
        "Each rank is in a collective that another has not entered, and can't enter while it waits in its own. This never"
        " ends. Both collectives are victims, often one of the model and one of the scheduler: the cause is an earlier turn"
        " in which the ranks went different ways.",
        "every version: nothing checks that ranks go the same way",
        "sgl-project/sglang PR 26394",
        "pdctl diff-queues names the round in which the ranks parted, and why. Then restart this server: it can't recover.",
        evidence="For each rank the collective it is in and how many of that group's collectives the ranks it waits for"
        " have entered, the same without a turn in between in at least three looks over at least two seconds.",
    ),
)

CATALOGUE: dict[str, Code] = {code.code: code for code in _CODES}


def finding(
    code: str,
    summary: str,
    *,
    group: str = "",
    rooms: tuple[int, ...] = (),
    ranks: tuple[str, ...] = (),
    evidence: tuple[str, ...] = (),
    versions: str = "",
) -> Finding:
    """Return a finding of ``code``; level, cause and next step are the catalogue's. Raises KeyError for no such"
    " code."""
    entry = CATALOGUE[code]
    return Finding(
        code=code,
        level=entry.level,
        summary=summary,
        group=group,
        rooms=rooms,
        ranks=ranks,
        evidence=evidence,
        cause=entry.title,
        versions=versions or entry.versions,
        next_step=entry.next_step,
    )
