"""The process that owns a lab: ``python -m pdctl.lab.supervisor STATE_DIR``. Imports torch once and forks the ranks.

The ranks die with it (parent-death signal), and it ends them when it is told to end.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pdctl.agent.plugin import switch_flight_recorder_on
from pdctl.lab import network, rank, state
from pdctl.lab.config import LabConfig
from pdctl.recording.writer import process_start

_PR_SET_PDEATHSIG = 1

_orphaned = threading.Event()
"""Set when the process that the lab belongs to has ended."""


def _fork(folder: Path, label: str, body: Callable[[], None]) -> state.Process:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return state.Process(label, pid, process_start(pid))
    return _child(folder, label, body, parent)


def _child(folder: Path, label: str, body: Callable[[], None], parent: int) -> NoReturn:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        rank.logs_to(folder, label)
        state.write(folder, state.me(label))
        body()
        code = 0
    except BaseException as error:  # noqa: BLE001  # whatever it was: said in the log and in the state
        traceback.print_exc()
        state.write(folder, state.me(label, state.FAILED, detail=f"{type(error).__name__}: {error}"))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _environment(config: LabConfig) -> None:
    """Set what agent, Gloo and Mooncake read from the environment in every rank."""
    os.environ.update(
        PDCTL_CLUSTER=config.name,
        PDCTL_RUN_DIR=config.run_dir,
        PDCTL_RECORD_DIR=config.record_dir,
        PDCTL_ARM="1" if config.armed else "0",
        PDCTL_LISTEN=config.listen,
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )


def _load() -> None:
    """Import once what every rank needs, before the ranks are forked. Nothing of it starts a thread or opens a socket."""
    import torch.distributed  # noqa: F401

    import pdctl.agent.core
    import pdctl.agent.server
    import pdctl.engines.lab.adapter
    import pdctl.lab.engine.scheduler  # noqa: F401


def _network(config: LabConfig) -> str:
    if not config.netns:
        return "the host's network (--no-netns)"
    try:
        network.new_network()
    except OSError as error:
        return f"the host's network: no namespace of its own ({error.strerror or error})"
    return "a network namespace of its own"


def supervise(folder: Path) -> int:
    """Start the lab in ``folder`` and stay until it is ended; returns the exit status."""
    config = state.read_config(folder)
    children: dict[int, state.Process] = {}

    def stop(*_: object) -> None:
        state.end(children.values())
        if _orphaned.is_set():  # nobody is left who would call `lab down`
            state.remove_files(config, [state.me("supervisor"), *children.values()])
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    _environment(config)
    where = _network(config)
    state.write(folder, state.me("supervisor", detail=where))
    switch_flight_recorder_on()
    _load()

    def start(label: str, body: Callable[[], None]) -> None:
        child = _fork(folder, label, body)
        children[child.pid] = child

    start("bootstrap", lambda: rank.bootstrap_main(config))
    for role in ("prefill", "decode"):
        shape = config.shape(role)
        for dp in range(shape.dp):
            for pp in range(shape.pp):
                for tp in range(shape.tp):
                    start(
                        rank.label_of(role, dp, pp, tp),
                        lambda role=role, dp=dp, pp=pp, tp=tp: rank.rank_main(config, role, dp, pp, tp),  # type: ignore[misc]
                    )
    state.write(folder, state.me("supervisor", state.READY, detail=where))
    if config.owner:  # a thread: from here on nothing is forked
        threading.Thread(target=_end_with, args=(config.owner,), name="lab-owner", daemon=True).start()
    while children:
        pid, status = os.wait()
        child = children.pop(pid, None)
        if child is not None:
            _note_end(folder, child, status)
    return 0


def _end_with(owner: int) -> None:
    """Tell this process to end as soon as ``owner`` has ended."""
    try:
        fd = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        select.select([fd], [], [])
    _orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _note_end(folder: Path, child: state.Process, status: int) -> None:
    """Write into a child's file how it ended, unless the child wrote it itself."""
    for known in state.processes(folder):
        if known.pid == child.pid:
            if known.state == state.FAILED:
                return
            child = known
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
    else:
        how = f"exit status {os.WEXITSTATUS(status)}"
    ended = state.Process(child.label, child.pid, child.start, state.ENDED, f"ended by {how}", child.transport)
    state.write(folder, ended)


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
