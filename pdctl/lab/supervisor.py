"""The process that owns a lab: ``python -m pdctl.lab.supervisor STATE_DIR``. Imports torch once and forks the ranks.

The ranks die with it (parent-death signal), and it ends them when it is told to end. It has one thread: it forks at any time.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from pdctl.agent.plugin import switch_flight_recorder_on
from pdctl.lab import network, rank, state
from pdctl.lab.config import LabConfig
from pdctl.protocol.processes import look

_PR_SET_PDEATHSIG = 1
ORDER_S = 5.0


def _fork(folder: Path, label: str, body: Callable[[], None]) -> state.Process:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return state.Process(label, pid, look(pid).start)
    return _child(folder, label, body, parent)


def _child(folder: Path, label: str, body: Callable[[], None], parent: int) -> NoReturn:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        rank.logs_to(folder, label)
        state.write(folder, state.me(label))
        body()
        code = 0
    except BaseException as error:  # noqa: BLE001  # whatever it was: said in the log and in the state
        sys.excepthook(type(error), error, error.__traceback__)  # as in a process of its own: agents hook it
        state.write(folder, state.me(label, state.FAILED, detail=f"{type(error).__name__}: {error}"))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _environment(config: LabConfig) -> None:
    """Set what agent, Gloo and Mooncake read from the environment in every rank.

    It is set in this process, since a forked rank has the environment of the supervisor, as an engine's rank has its server's.
    A value that is passed to the agent's start would not reach an agent that is put into the rank later.
    """
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


class Supervisor:
    """A lab's processes: started, restarted, reaped and ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = state.read_config(folder)
        self.children: dict[int, state.Process] = {}
        self.network = ""
        self._starts: Counter[str] = Counter()
        self._control: socket.socket | None = None

    def run(self) -> int:
        """Start the lab and stay until it is ended, or has no process any more; returns the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        _environment(self.config)
        self.network = _network(self.config)
        state.write(self.folder, state.me("supervisor", detail=self.network))
        switch_flight_recorder_on()
        _load()
        for server in self.config.servers:
            self.start(server)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as self._control:
            self._control.bind(str(state.control_socket(self.folder)))
            self._control.listen(4)
            state.write(self.folder, state.me("supervisor", state.READY, detail=self.network))
            self._serve()
        return 0

    def stop(self, *, orphaned: bool = False) -> NoReturn:
        """End every process, and remove the lab's files where nobody is left who would."""
        state.end(self.children.values())
        if orphaned:
            past = state.past(self.folder)
            state.remove_files(self.config, [state.me("supervisor"), *self.children.values(), *past])
        os._exit(0)

    def start(self, server: str) -> None:
        """Fork the processes of a server, its own bootstrap server first."""
        config, number = self.config, self._starts[server]
        self._starts[server] += 1
        me = os.getpid()
        start = f"{me}.{look(me).start}{f'.{number}' if number else ''}"
        for bootstrap in self._own_bootstrap(server):
            self._fork(bootstrap, partial(rank.bootstrap_main, config, bootstrap))
        shape = config.shape(server)
        for dp in range(shape.dp):
            rank.world_file(config, server, dp).unlink(missing_ok=True)
        for place in itertools.product(range(shape.dp), range(shape.pp), range(shape.tp)):
            label = rank.label_of(server, *place)
            self._fork(label, partial(rank.rank_main, config, server, place, start))

    def restart(self, name: str) -> None:
        """End a server with its own bootstrap server, or a bootstrap server alone, and start it again at its address.

        Raises ValueError for what can't be started again.
        """
        config = self.config
        if name in config.servers:
            self._end({*self._own_bootstrap(name), *rank.labels_of(config, name)})
            self.start(name)
        elif name in config.bootstraps.values():
            self._end({name})
            self._fork(name, partial(rank.bootstrap_main, config, name))
        else:
            raise ValueError(f"there is no server {name}")

    def _own_bootstrap(self, server: str) -> list[str]:
        name = self.config.bootstraps.get(server)
        first = next((other for other, its in self.config.bootstraps.items() if its == name), None)
        return [name] if name is not None and first == server else []

    def _fork(self, label: str, body: Callable[[], None]) -> None:
        child = _fork(self.folder, label, body)
        self.children[child.pid] = child

    def _end(self, labels: set[str]) -> None:
        victims = [child for child in self.children.values() if child.label in labels]
        left = state.end(victims)
        if left:
            raise ValueError(f"still there after SIGKILL: {', '.join(process.label for process in left)}")
        for child in victims:  # the last thread of one may still be on its way out
            _, status = os.waitpid(child.pid, 0)
            _note_end(self.folder, self.children.pop(child.pid), status)
        for process in state.processes(self.folder):
            if process.label in labels:
                state.retire(self.folder, process)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                _log_end(self.folder, child, status)
                _note_end(self.folder, child, status)

    def _serve(self) -> None:
        """Reap children and take orders, until no child is left or the lab's owner has ended."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        owner = self._owner()
        assert self._control is not None
        waits = [woken, self._control.fileno(), *([owner] if owner is not None else [])]
        self._reap()
        while self.children:
            ready, _, _ = select.select(waits, [], [])
            if owner in ready:
                self.stop(orphaned=True)
            if woken in ready:
                os.read(woken, 4096)
            self._reap()
            if self._control.fileno() in ready:
                self._take_order()

    def _owner(self) -> int | None:
        if not self.config.owner:
            return None
        try:
            return os.pidfd_open(self.config.owner)
        except ProcessLookupError:
            self.stop(orphaned=True)

    def _take_order(self) -> None:
        """Carry out one order: the name of what is to be restarted. The answer is state.DONE, or what went wrong."""
        assert self._control is not None
        try:
            peer, _ = self._control.accept()
            with peer:
                peer.settimeout(ORDER_S)
                name = peer.recv(256).decode("utf-8", "replace")
                try:
                    self.restart(name)
                except (OSError, ValueError) as error:
                    peer.send(f"{error}"[:1000].encode())
                else:
                    peer.send(state.DONE)
        except OSError as error:
            sys.stderr.write(f"an order was not carried out: {error}\n")


def _log_end(folder: Path, child: state.Process, status: int) -> None:
    """Write into a child's log what a server's main process says of a rank that was killed, in SGLang's words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return
    name = child.label.replace(" ", "_")
    try:
        with rank.log_file(folder, child.label).open("a") as log:
            log.write(f"Subprocess {name} (pid={child.pid}) crashed with exit code {code}.\n")
    except OSError as error:
        sys.stderr.write(f"{child.label} ended with {code}, which could not be logged: {error}\n")


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
    try:
        state.write(folder, ended)
    except OSError as error:  # the other processes go on
        sys.stderr.write(f"{child.label} {ended.detail}, which could not be noted: {error}\n")


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1])).run())
