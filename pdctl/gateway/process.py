"""The gateway's program: started by a rank with nothing but a few descriptors, ends with it.

usage: python -I -S process.py PID

Standard input: a JSON line with the configuration, then lines with the id of the agent's thread. Its end ends the gateway.
Standard output: a JSON line for each message to the rank: first ``endpoint`` and ``server_key``, or ``failed``; then ``note``
and ``rotated``. Any other output, also on standard error, is the last message of a process that libzmq aborted.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

_NICE = 10
_DESCRIPTORS = 1024
_MAX_SETUP = 64 * 1024


def _line() -> bytes:
    """Return the first line of standard input, read byte by byte: what comes after it is for later."""
    said = bytearray()
    while len(said) < _MAX_SETUP:
        byte = os.read(0, 1)
        if byte in (b"\n", b""):
            break
        said += byte
    return bytes(said)


def _say(what: dict[str, str]) -> None:
    """Send a message to the rank. If the rank is stopped and the pipe is full, the message is lost."""
    try:
        os.write(1, json.dumps(what).encode() + b"\n")
    except OSError:
        pass


def _settle() -> None:
    """Reset inherited state of the engine's thread: signals, working directory, resource limits, scheduling."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.set_blocking(1, False)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has a secret key
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, hard), hard))
    for change in (
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        lambda: os.nice(_NICE),
        _be_the_first_to_go,
    ):
        try:
            change()
        except OSError:
            pass  # it serves all the same


def _be_the_first_to_go() -> None:
    """Have the kernel end this process before the engine where memory is short."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Serve until the rank ends. Never raises: failures are reported to the rank."""
    setup = json.loads(_line())
    _settle()
    sys.path += setup["path"]
    try:
        from pdctl.gateway.service import Service

        service = Service(setup, _say)
    except Exception as error:  # noqa: BLE001  # no keys, a port in use, a pyzmq without CURVE
        _say({"failed": str(error)[:1000] or type(error).__name__})
        return
    _say({"endpoint": service.endpoint, "server_key": service.server_key})
    service.run(0)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # libzmq's threads have nothing to end in good order
