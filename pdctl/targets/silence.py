"""Why a rank is not asked, or gives no answer."""

from __future__ import annotations

import socket

from pdctl.protocol import wire
from pdctl.protocol.processes import Process, look
from pdctl.protocol.rank import FoundRank, Silence


class Answered(OSError):  # noqa: N818  # it is no error of this side
    """A far side says why a rank of it gives no answer."""

    def __init__(self, silence: Silence, reason: str) -> None:
        super().__init__(reason)
        self.silence = silence


def unreachable(rank: FoundRank) -> tuple[Silence, str] | None:
    """Return why asking ``rank`` is useless, None if it may answer. Tries its socket; sends nothing."""
    silent = not_asked(rank)
    if silent is not None or rank.access is not None:
        return silent  # of another host: its connection tells, once it has been tried
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(rank.endpoint.removeprefix("ipc://"))
        except BlockingIOError:
            return None  # more connections wait than it takes: stopped, most likely; the timeout will tell
        except OSError as error:
            return no_connection(rank, error)
    return None


def not_asked(rank: FoundRank) -> tuple[Silence, str] | None:
    """Return why ``rank`` must not be asked, from known facts only; None if it may be asked."""
    if rank.silent:
        return rank.silent, rank.silent_why
    if rank.state == "no agent":
        return Silence.NO_AGENT, rank.endpoint_off
    if rank.state == "dead":
        return Silence.DEAD, rank.process.why_silent if rank.process.state == "Z" else "process has ended"
    if rank.state == "recorded":
        return Silence.RECORDED, ""
    if rank.state == "outside" and not rank.via:
        return Silence.NO_AGENT, rank.silent_why or "no agent is in it"
    if not rank.endpoint and not rank.via:
        return Silence.NO_SOCKET, rank.endpoint_off or "it has no socket"
    if rank.protocol != wire.PROTOCOL:
        return Silence.PROTOCOL, f"its agent speaks protocol {rank.protocol}, this pdctl speaks {wire.PROTOCOL}"
    return None


def no_connection(rank: FoundRank, error: OSError) -> tuple[Silence, str]:
    """Return the reason for a rank's silence that a connection error shows."""
    if isinstance(error, Answered):
        return error.silence, str(error)
    if rank.access is not None:
        return Silence.TIMED_OUT, str(error)
    path = rank.endpoint.removeprefix("ipc://")
    if isinstance(error, PermissionError):
        return Silence.NOT_AUTHORISED, f"its socket {path} is not open to this user"
    if isinstance(error, (FileNotFoundError, ConnectionError)):
        why = ended(rank, look(rank.identity.pid))
        if why:
            return Silence.DEAD, why
    if isinstance(error, FileNotFoundError):
        return Silence.REFUSED, f"its socket {path} is gone"
    if isinstance(error, ConnectionRefusedError):
        return Silence.REFUSED, f"nobody listens on its socket {path}"
    return Silence.REFUSED, f"its socket {path}: {error.strerror or error}"


def stopped(rank: FoundRank) -> bool:
    """Return whether this host shows that the rank's process is stopped by a signal. It gives no answer until it goes on."""
    if rank.access is not None or rank.via:
        return False
    process = look(rank.identity.pid)
    return process.state == "T" and process.runs_since(rank.identity.proc_start)


def ended(rank: FoundRank, process: Process) -> str:
    """Return a sentence if the rank's process has ended; "" if it runs, or if it is in another pid namespace."""
    if process.runs_since(rank.identity.proc_start) or not (process.state or rank.process.state):
        return ""
    return process.why_silent if process.state == "Z" else "process has ended"
