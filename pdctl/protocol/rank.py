"""A rank as a client sees it: how to reach it, and its answer. Plain data, which judges use too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from pdctl.protocol.model import ATTACHED, Identity
from pdctl.protocol.processes import NO_PROCESS, Process, age_s
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
    """The keys for a rank on another host: its agent's public key and the client's pair, as hexadecimal digits.

    All are "" if the socket is open to every user of its host.
    """

    server_key: str = ""
    public: str = ""
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class FoundRank:
    """One rank, or an expected rank that was not found.

    state: ``live`` (its process runs), ``dead`` (only a registration or recording is left), ``recorded`` (the user gave its
    recording; its process is not looked at), ``outside`` (its process runs without an agent and is read from outside),
    ``no agent`` (the sizes of its server promise it, and nothing of it was found). For ``no agent`` identity has the
    coordinates and no process.
    protocol: version that its agent speaks, 0 unknown. recording: the file, None without one; recording_off says why.
    member: name of that file in its trace. seen_ns: when it was copied into the trace, on the monotonic clock of the host that
    copied it, 0 unknown. seen_live: whether its process ran then, None unknown.
    access: set for a rank of another host; pdctl does not look for it in /proc or in files of this host. tcp: its endpoint for
    other hosts, "" without one; tcp_off says why a requested one is missing. store: the address of its job's
    TCPStore, "" without one. remembered: it does not answer, and its identity is that of the rank which last answered at this
    endpoint. log: the file that it writes its log to, where this host has it. silent: why asking it is useless, if that is
    known already: a kind and a text. agent_off: why its agent is silent, if the rank is read from outside instead (state
    ``outside``). via: the far side that carries questions to it, "" where none does; far_key: its name there.
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
    seen_live: bool | None = None
    access: Access | None = None
    tcp: str = ""
    tcp_off: str = ""
    store: str = ""
    remembered: bool = False
    log: Path | None = None
    silent: Silence = Silence.NONE
    silent_why: str = ""
    agent_off: str = ""
    via: str = ""
    far_key: str = ""

    @property
    def recording_name(self) -> str:
        """Name of its recording: the path, or the name in a trace; "" without one."""
        return self.member or str(self.recording or "")

    @property
    def connection(self) -> str:
        """The key of a connection to it: its endpoint, and the server key expected there; or who carries it."""
        if self.via:
            return f"{self.via} {self.far_key}"
        return self.endpoint if self.access is None else f"{self.endpoint} {self.access.server_key}"

    @property
    def live(self) -> bool:
        """Whether its process runs and can be asked, by its agent or from outside."""
        return self.state in ("live", "outside")

    @property
    def host(self) -> bool:
        """Whether this is no rank, but a host or a pod that gives none: only its name is known."""
        return self.live and self.identity.tp < 0 and not (self.endpoint or self.far_key or self.identity.pid)

    @property
    def carries_recording(self) -> bool:
        """Whether its recording can be asked for: of its agent while it lives, of its far side also when it has ended."""
        return bool(self.recording_size and (self.live or self.via))

    def up_s(self, mono_ns: int = 0) -> float | None:
        """Return how many seconds ago its process began. None: unknown, as where its agent came later.

        mono_ns: this moment on its clock, 0 unknown.
        """
        one = self.identity
        if self.access is None and self.process.runs_since(one.proc_start):
            return age_s(one.proc_start)
        if not mono_ns or not one.started_mono_ns or one.loaded_by == ATTACHED:
            return None
        return max(0.0, (mono_ns - one.started_mono_ns) / 1e9)


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What one rank answered: ``body``, or None with ``silence`` and ``reason`` (one sentence) saying why.

    next_step and code are the agent's own where it answered with an error.
    """

    rank: FoundRank
    body: T | None = None
    silence: Silence = Silence.NONE
    reason: str = ""
    next_step: str = ""
    code: int = 0
