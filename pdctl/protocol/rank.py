"""A rank as seen from outside: where it is, and what it answered. Plain data, which judges use too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from pdctl.protocol.model import Identity
from pdctl.protocol.processes import NO_PROCESS, Process
from pdctl.protocol.wire import PROTOCOL

T = TypeVar("T")


class Silence(str, Enum):
    """Why a rank gave no answer."""

    NONE = ""
    NO_AGENT = "no agent"
    DEAD = "dead"
    RECORDED = "only its recording was asked for"
    NO_SOCKET = "no socket"
    REFUSED = "refused"
    NOT_AUTHORISED = "not authorised"
    TIMED_OUT = "timed out"
    PROTOCOL = "other protocol"
    GARBAGE = "garbage"
    ERROR = "error"


@dataclass(frozen=True)
class Access:
    """How a rank on another host is reached: its agent's public key and the pair shown to it, as hexadecimal digits.

    All "" for a socket that is open to everybody of its host.
    """

    server_key: str = ""
    public: str = ""
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class FoundRank:
    """One rank, or a place in a server where a rank should be.

    state: ``live`` (its process runs), ``dead`` (registration or recording left behind), ``recorded`` (its recording
    was given to be read, whatever became of it), ``outside`` (its process runs without an agent here and is read from
    outside), ``no agent`` (expected from the sizes of its server, nothing of it is here). For the last, identity holds its
    coordinates and no process.
    protocol: what its agent speaks, 0 unknown. recording: the file, None without one, and why in recording_off.
    member: what that file is called in the trace it was unpacked from. seen_ns: when it was copied into that trace, on
    the monotonic clock of the host it was copied on, 0 where unknown. seen_live: its process ran then.
    access: set for a rank that is reached over TCP: nothing of it is looked for in /proc or in files here. tcp: where it
    listens for other hosts, "" where it does not, and why in tcp_off where it was asked to. store: the address of its job's
    TCPStore, "" where it has none. remembered: it does not answer, and its identity is of whoever was at its endpoint when
    that last answered. silent: why it is not worth asking, found out already, and in words. agent_off: set for one
    that has an agent, which is silent, and why, where it is read from outside in the agent's place (state ``outside``).
    """

    identity: Identity
    state: str
    endpoint: str = ""
    endpoint_off: str = ""
    protocol: int = PROTOCOL
    recording: Path | None = None
    recording_size: int = 0
    recording_off: str = ""
    process: Process = NO_PROCESS
    member: str = ""
    seen_ns: int = 0
    seen_live: bool = False
    access: Access | None = None
    tcp: str = ""
    tcp_off: str = ""
    store: str = ""
    remembered: bool = False
    silent: Silence = Silence.NONE
    silent_why: str = ""
    agent_off: str = ""

    @property
    def recording_name(self) -> str:
        """What to call its recording: its path, or its place in a trace; "" without one."""
        return self.member or str(self.recording or "")

    @property
    def connection(self) -> str:
        """What names a connection to it: its endpoint, and the key that is expected there."""
        return self.endpoint if self.access is None else f"{self.endpoint} {self.access.server_key}"

    @property
    def live(self) -> bool:
        """Whether it can be asked, itself or from outside."""
        return self.state in ("live", "outside")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What one rank answered: ``body``, or None with ``silence`` and ``reason`` (one sentence) saying why.

    next_step and code are the agent's own where it answered with an error. round_trip_s: from question to answer.
    """

    rank: FoundRank
    body: T | None = None
    silence: Silence = Silence.NONE
    reason: str = ""
    next_step: str = ""
    code: int = 0
    round_trip_s: float = 0.0
