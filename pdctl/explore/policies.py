"""The policies of the explorer: what ranks do with their polls, by engine version. Pure data.

Each policy names the version of SGLang and the function of its rule. tests/engine compares the transfer policies with these
functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Split(str, Enum):
    """How ranks part. The value is what people read; :data:`BITS` has the number the kernels use."""

    KEPT = "one rank commits what another keeps"
    MIXED = "one rank commits what another aborts"
    ABORTED = "one rank aborts what another keeps"
    LISTS = "the lists that go into one round differ"
    SKIPPED = "one rank skips a round that another enters"
    ORPHAN = "a later stage keeps for ever what an earlier stage has removed"


BITS: dict[Split, int] = {split: 1 << n for n, split in enumerate(Split)}

Machine = Literal["transfer", "receiver", "pipeline"]


@dataclass(frozen=True)
class Policy:
    """One rule. machine: which queue it is about and so what a schedule is made of (:mod:`.space`).

    gate (transfer): when a rank's own Success goes into the MIN as Transferring: never, while the slot reads 0, or while it
    does not hold the request's room. zeroed (transfer): slots are zeroed when they are freed, so that a new request never
    finds a former owner's room. early (receiver): a request is on the list from its arrival on, else from the answer to
    this rank's own query on. drained (pipeline): a later stage removes what failed there, whatever it was told.
    engine: the versions with this rule, "" for one that no version has. read_from: file and function of one of them.
    """

    name: str
    machine: Machine
    says: str
    engine: str
    read_from: str
    gate: Literal["none", "zero", "expected"] = "none"
    zeroed: bool = False
    early: bool = False
    drained: bool = False

    @property
    def queue(self) -> str:
        """Name of the queue whose rounds these are, as recordings call it."""
        return {"transfer": "decode.transfer", "receiver": "decode.prealloc", "pipeline": "prefill.bootstrap"}[
            self.machine
        ]


_ALL = (
    Policy(
        "no-gate",
        "transfer",
        "Each rank decides on a reduced Success by what it reads in its own slot: 0 keeps, another room aborts.",
        "SGLang <= 0.5.12.post1",
        "0.5.12.post1 disaggregation/decode.py: DecodeTransferQueue.pop_transferred, _commit_transfer_to_req",
    ),
    Policy(
        "gate-zero",
        "transfer",
        "A rank whose slot reads 0 polls Transferring instead of Success; slots are zeroed when they are freed.",
        "SGLang >= 0.5.13",
        "0.5.13.post1 disaggregation/utils.py: _apply_metadata_gate; decode.py: pop_transferred",
        gate="zero",
        zeroed=True,
    ),
    Policy(
        "gate-zero-unzeroed",
        "transfer",
        "The same gate where freed slots keep their room: a former owner's room passes it.",
        "",
        "0.5.13.post1 disaggregation/utils.py: _apply_metadata_gate, without the zeroing in decode.py: pop_transferred",
        gate="zero",
    ),
    Policy(
        "gate-expected",
        "transfer",
        "A rank polls Transferring until its slot holds the request's own room; freed slots may keep theirs.",
        "",
        "0.5.13.post1 disaggregation/utils.py: _apply_metadata_gate, with `!= expected` for `== 0`",
        gate="expected",
    ),
    Policy(
        "receiver-old",
        "receiver",
        "A request joins a rank's handshake queue when that rank's own query for its prefill dp rank is answered.",
        "no release: the code before PR 21299",
        "the lab's old life cycle: pdctl/lab/engine/prealloc.py: DecodePreallocQueue.add, _resolve_pending_reqs",
    ),
    Policy(
        "receiver-new",
        "receiver",
        "A request joins every rank's handshake queue at its arrival; only its receiver's init waits for the answer.",
        "SGLang >= 0.5.10.post1",
        "0.5.13.post1 disaggregation/decode.py: DecodePreallocQueue.add, _resolve_pending_reqs",
        early=True,
    ),
    Policy(
        "pp-filter-old",
        "pipeline",
        "A later stage looks only at the requests that the stage before it has just removed.",
        "SGLang <= 0.5.12.post1",
        "0.5.12.post1 disaggregation/prefill.py: PrefillBootstrapQueue.pop_bootstrapped (rids_to_check)",
    ),
    Policy(
        "pp-filter-new",
        "pipeline",
        "The same filter, but what failed on a later stage leaves it whatever the stage before says.",
        "SGLang >= 0.5.13",
        "0.5.13.post1 disaggregation/prefill.py: PrefillBootstrapQueue.pop_bootstrapped (poll != KVPoll.Failed)",
        drained=True,
    ),
)

POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}
"""All policies by name, in the order they are shown."""
