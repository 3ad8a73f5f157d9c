"""Choose processes of a lab by name, signal them, make a scheduler fail, and abort requests."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence

import zmq

from pdctl.lab import messages, rank, state
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError

SIGNALS = ("TERM", "KILL", "STOP", "CONT", "INT", "ABRT", "SEGV")
_ENDING = ("TERM", "KILL", "INT", "ABRT", "SEGV")
NOTED_S = 10.0


def select(config: LabConfig, processes: Sequence[state.Process], text: str) -> list[state.Process]:
    """Return the processes that ``text`` names.

    ``decode dp0 pp0 tp1``, ``decode:tp1``: a rank, or all ranks of a server with these numbers. ``prefill``: a server with its
    own bootstrap server. ``bootstrap``, ``supervisor``: that process. Raises PdctlError (USAGE) for what names none.
    """
    first, *places = [part for part in re.split(r"[ :,_-]+", text.strip().lower()) if part] or [""]
    found = [
        process
        for process in processes
        if process.label.split()[0] == first and set(places) <= set(process.label.split()[1:])
    ]
    if found and not places and first in config.bootstraps:
        own = first.replace("prefill", "bootstrap")
        found = [process for process in processes if process.label == own] + found
    if not found:
        known = ", ".join(process.label for process in processes)
        raise PdctlError(f"there is no process {text[:80]!r} in lab {config.name}", f"known: {known}", Exit.USAGE)
    return found


def send_signal(processes: Sequence[state.Process], name: str, wait_s: float = 5.0) -> list[state.Process]:
    """Send a signal to processes that are still there, and return those that got it. It waits for those that it ends."""
    number = getattr(signal, f"SIG{name}")
    reached = []
    for process in processes:
        try:
            if process.alive:
                os.kill(process.pid, number)
                reached.append(process)
        except ProcessLookupError:
            continue
    if name in _ENDING:
        wait_for_end(reached, wait_s)
    return reached


def how_they_are(config: LabConfig, processes: Sequence[state.Process]) -> list[state.Process]:
    """Return the processes as their files say now, with how they ended as soon as the supervisor has noted it.

    It is waited for where the supervisor is there, NOTED_S at most.
    """
    deadline = time.monotonic() + NOTED_S
    while True:
        every = state.processes(config.state_dir)
        told = {(p.pid, p.start): p for p in every}
        now = [told.get((p.pid, p.start), p) for p in processes]
        told_all = all(p.alive or p.state in (state.ENDED, state.FAILED) for p in now)
        nobody = not any(p.label == "supervisor" and p.alive for p in every)
        if told_all or nobody or time.monotonic() > deadline:
            return now
        time.sleep(0.02)


def wait_for_end(processes: Sequence[state.Process], wait_s: float) -> bool:
    """Return whether all processes have ended within ``wait_s`` seconds."""
    deadline = time.monotonic() + wait_s
    while any(process.alive for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def abort(config: LabConfig, rids: Sequence[str], servers: Sequence[str], wait_s: float) -> dict[str, bool]:
    """Tell servers to abort requests, as ``/abort_request`` does.

    Returns of each dp rank of the servers, as ``decode dp0``, whether a process took the message within ``wait_s`` seconds.
    """
    places = {f"{server} dp{dp}": (server, dp) for server in servers for dp in range(config.shape(server).dp)}
    with zmq.Context() as context:
        context.setsockopt(zmq.LINGER, 0)
        sockets = {}
        for name, (server, dp) in places.items():
            sockets[name] = socket = context.socket(zmq.PUSH)
            socket.setsockopt(zmq.IMMEDIATE, 1)  # a message is taken where somebody listens, and nowhere else
            socket.setsockopt(zmq.LINGER, int(wait_s * 1000))
            socket.connect(rank.request_endpoint(config, server, dp))
        end = time.monotonic() + wait_s
        told = {name: _send(socket, rids, end) for name, socket in sockets.items()}
        for socket in sockets.values():
            socket.close()
    return told


def _send(socket: zmq.Socket[bytes], rids: Sequence[str], end: float) -> bool:
    """Send these to one who listens until ``end``, of the monotonic clock. Return whether somebody does."""
    for rid in rids:
        if not socket.poll(max(0, int(1000 * (end - time.monotonic()))), zmq.POLLOUT):
            return False
        socket.send(messages.encode(messages.Abort(rid)), zmq.NOBLOCK)
    return True


def crash(config: LabConfig, process: state.Process, wait_s: float) -> None:
    """Make a rank's scheduler raise an exception, and wait for its end.

    Raises PdctlError: USAGE for a process that is no rank, DEADLINE where its scheduler does not take messages.
    """
    server, *numbers = process.label.split()
    if not numbers:
        raise PdctlError(f"{process.label} has no scheduler", "name a rank, as decode:tp1", Exit.USAGE)
    if not process.alive:
        raise PdctlError(f"{process.label} has ended", f"pdctl lab status --name {config.name}", Exit.UNREACHABLE)
    dp, pp, tp = (int(number[2:]) for number in numbers)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(rank.request_endpoint(config, server, dp))
        socket.send(messages.encode(messages.Crash(pp, tp)))
        ended = wait_for_end([process], wait_s)
    if not ended:
        raise PdctlError(
            f"{process.label} has not ended: its scheduler does not take messages now",
            f"pdctl lab kill '{process.label}' needs no scheduler",
            Exit.DEADLINE,
        )
