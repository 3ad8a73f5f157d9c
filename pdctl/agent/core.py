"""The agent of one rank: started once per process with an adapter, stopped when the process ends.

A failure here must not reach the engine. The recording or the socket may be off; the rank goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import pdctl
from pdctl.agent.space import make_way, recording_size
from pdctl.engines.base import MAX_ERRORS, Adapter, Site
from pdctl.faults.fault import Fault
from pdctl.faults.table import FaultTable
from pdctl.protocol import paths
from pdctl.protocol.model import ATTACHED, EventKind, Identity
from pdctl.protocol.notes import AGENT_ENDED
from pdctl.protocol.processes import look
from pdctl.protocol.wire import PROTOCOL
from pdctl.recording.null import NullRecorder
from pdctl.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from pdctl.agent.publish import Publisher
    from pdctl.agent.server import Server
    from pdctl.agent.visible import Stacks

log = logging.getLogger("pdctl")

_FAULT_EVENTS = {"armed": EventKind.FAULT_ARMED, "fired": EventKind.FAULT_FIRED, "ended": EventKind.FAULT_ENDED}


def _on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() in ("1", "on", "yes", "true")


def _off(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() in ("0", "off", "no", "false")


class Agent:
    """One rank's agent. :meth:`start` is the way to get one."""

    current: Agent | None = None
    _starting = threading.Lock()

    def __init__(self, adapter: Adapter, env: Mapping[str, str], loaded_by: str) -> None:
        self.adapter = adapter
        self.pid = os.getpid()
        self._registering = threading.Lock()
        self._stopped = False
        self._known = adapter.identity()
        self.identity = self._stamp(self._known, env, loaded_by)
        self.recorder: RecordingWriter | NullRecorder = self._recorder(env)
        self.faults = FaultTable(self.identity.armed, self._fault_event)
        self._install()
        self.server: Server | None = None
        self.registration = self._serve(env)
        if isinstance(self.recorder, RecordingWriter):
            self.recorder.when_stopped(self._recording_stopped)
        self.stacks = self._be_seen(env)
        self.publisher: Publisher | None = self._publish(env)

    @classmethod
    def start(
        cls,
        adapter: Adapter,
        loaded_by: str = "",
        *,
        env: Mapping[str, str] = os.environ,
        says: Callable[[str], None] = log.info,
    ) -> Agent | None:
        """Start the agent of this process and return it; return a running agent unchanged. Never raises.

        None if it is switched off (PDCTL_AGENT=off) or could not start; one line of the log gives the reason.
        """
        with cls._starting:
            if cls.current is not None or _off(env, "PDCTL_AGENT"):
                return cls.current
            try:
                agent = cls(adapter, env, loaded_by)
                cls.current = agent
                _stop_at_exit(agent)
                says(agent.start_line())
            except Exception as error:  # the engine must not notice
                says(f"pdctl agent is off: {type(error).__name__}: {error}")
            return cls.current

    def start_line(self) -> str:
        """Return the line that the agent logs: the rank's identity, and the parts that are off, with the reason."""
        r = self.registration
        socket = " and ".join(filter(None, (r.endpoint, r.tcp, r.tcp_off))) or f"socket off ({r.endpoint_off})"
        recording = r.recording or f"recording off ({r.recording_off})"
        armed = ", faults can be injected (PDCTL_ARM=1)" if self.identity.armed else ""
        seen = f", stacks on {self.stacks.name}" if self.stacks is not None and not self.stacks.off else ""
        return f"pdctl agent {pdctl.__version__} in {self.identity.label}: {socket}, {recording}{seen}{armed}"

    def stop(self) -> None:
        """End the agent: heal faults, remove hooks, socket and registration, close the recording. Idempotent."""
        if Agent.current is self:
            Agent.current = None
        if os.getpid() != self.pid:
            return
        self.faults.heal(why="agent stopped")
        self.adapter.hooks.remove_all()
        if self.publisher is not None:
            self.publisher.stop()
        if self.server is not None:
            self.server.stop()
            self.server = None
        if self.stacks is not None:
            self.stacks.stop()
        with self._registering:
            self._stopped = True
            if self.registration.endpoint:
                _registration_file(self.registration).unlink(missing_ok=True)
        if isinstance(self.recorder, RecordingWriter):
            self.recorder.stop()

    def follow_identity(self, r: paths.Registration) -> paths.Registration | None:
        """Take over the rank's identity if its engine has given it another role; None where it is the same."""
        found = self.adapter.identity()
        if found is self._known or found == self._known:
            return None
        self._known, old = found, self.identity
        self.identity = msgspec.structs.replace(
            found, pid=old.pid, proc_start=old.proc_start, pdctl_version=old.pdctl_version, cluster=old.cluster,
            started_wall_ns=old.started_wall_ns, started_mono_ns=old.started_mono_ns, armed=old.armed, loaded_by=old.loaded_by,
        )  # fmt: skip
        if isinstance(self.recorder, RecordingWriter):
            self.recorder.set_identity(msgspec.json.encode(self.identity))
        return msgspec.structs.replace(r, identity=self.identity)

    def update_registration(self, r: paths.Registration) -> None:
        """Replace this agent's registration by ``r``, in the run directory and in the store. Nothing once it has stopped."""
        with self._registering:
            if self._stopped:
                return
            self.registration = r
            paths.write_private(_registration_file(r), msgspec.json.encode(r))
        if self.publisher is not None:
            self.publisher.registration = r

    def note(self, text: str) -> None:
        """Write a note into the recording and the engine's log. Never raises."""
        try:
            self.recorder.event(EventKind.NOTE, text=text)
            log.warning("pdctl agent of %s: %s", self.identity.label, text)
        except Exception:  # noqa: S110  # the rank goes on, told or not
            pass

    def _recording_stopped(self, reason: str) -> None:
        """Report the end of the recording in the engine's log and in the registration."""
        self.note(f"recording stopped: {reason}")
        if self.registration.endpoint:
            try:
                self.update_registration(msgspec.structs.replace(self.registration, recording_off=reason))
            except OSError:
                pass  # who asks the agent still hears it

    def thread_ended(self, why: str) -> None:
        """Report in the recording and the engine's log that the agent's thread has ended. The ending thread calls this."""
        try:
            self.recorder.event(EventKind.NOTE, text=f"{AGENT_ENDED}: {why}")
            log.warning("pdctl agent of %s has ended: %s; what is recorded goes on", self.identity.label, why)
        except Exception:  # noqa: S110  # it ends either way
            pass

    def _be_seen(self, env: Mapping[str, str]) -> Stacks | None:
        """Let other processes of the user read this one if the agent can't answer. A failure here changes nothing else."""
        try:
            from pdctl.agent.visible import Stacks, allow_readers

            allow_readers(env)
            if self.registration.endpoint:
                socket = Path(self.registration.endpoint.removeprefix("ipc://"))
                return Stacks(socket.with_suffix(paths.STACKS_SUFFIX), env)
        except Exception:  # noqa: S110  # it was only a help
            pass
        return None

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _stamp(self, identity: Identity, env: Mapping[str, str], loaded_by: str) -> Identity:
        """Return the adapter's identity, completed with the fields that the agent knows."""
        return msgspec.structs.replace(
            identity,
            pid=self.pid,
            proc_start=look(self.pid).start,
            pdctl_version=pdctl.__version__,
            started_wall_ns=identity.started_wall_ns or time.time_ns(),
            started_mono_ns=identity.started_mono_ns or time.monotonic_ns(),
            cluster=env.get("PDCTL_CLUSTER") or identity.cluster,
            armed=_on(env, "PDCTL_ARM"),
            loaded_by=loaded_by or identity.loaded_by,
        )

    @property
    def _stem(self) -> str:
        return paths.stem(self.pid, self.identity.proc_start)

    def _recorder(self, env: Mapping[str, str]) -> RecordingWriter | NullRecorder:
        if _off(env, "PDCTL_RECORD"):
            return NullRecorder("switched off (PDCTL_RECORD=off)")
        if self.identity.loaded_by == ATTACHED:
            return NullRecorder("its agent came while it ran: its rounds would have other numbers than its peers'")
        try:
            folder = paths.private_dir(paths.record_dir(env))
            make_way([folder, *paths.run_dirs(env)], self.identity)
            size = recording_size(folder, env.get("PDCTL_RECORD_SIZE", ""))
            path = folder / f"{self._stem}{paths.RECORDING_SUFFIX}"
            path.unlink(missing_ok=True)  # the name is this process's: what is there is of another boot
            return RecordingWriter.create(path, msgspec.json.encode(self.identity), size=size)
        # No memory, a number too large: whatever it is, the rank goes on without a recording.
        except Exception as error:
            return NullRecorder(str(error) or type(error).__name__)

    def _install(self) -> None:
        try:
            self.adapter.install(self.recorder, self.faults)
        except Exception:  # seams missing: the rank still tells where it is
            self.adapter.hooks.remove_all()
            site = self.adapter.hooks.sites.setdefault("install", Site("install"))
            for _ in range(MAX_ERRORS):
                site.failed()

    def _serve(self, env: Mapping[str, str]) -> paths.Registration:
        r = paths.Registration(
            protocol=PROTOCOL,
            identity=self.identity,
            recording=str(self.recorder.path) if isinstance(self.recorder, RecordingWriter) else "",
            recording_size=self.recorder.size if isinstance(self.recorder, RecordingWriter) else 0,
            recording_off=self.recorder.reason,
            store=self._store(env),
            log=_log_file(),
        )
        reasons: list[str] = []
        for folder in paths.run_dirs(env):
            try:
                return self._bind(paths.private_dir(folder), r, env)
            except Exception as error:  # directory refused, no thread or descriptor to be had: said in the log line
                reasons.append(str(error) or type(error).__name__)
        return msgspec.structs.replace(r, endpoint_off="; ".join(reasons))

    def _store(self, env: Mapping[str, str]) -> str:
        """Return HOST:PORT of the job's TCPStore, "" without one."""
        from pdctl.agent.publish import store_address

        try:
            address = store_address(env)
        except Exception:  # an odd store of the engine's own
            return ""
        if address is None:
            return ""
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _bind(self, folder: Path, r: paths.Registration, env: Mapping[str, str]) -> paths.Registration:
        from pdctl.agent.server import Server

        socket = folder / f"{self._stem}{paths.SOCKET_SUFFIX}"
        length = len(os.fsencode(socket))
        if length > paths.SOCKET_PATH_MAX:
            raise OSError(f"path of the socket is {length} bytes, at most {paths.SOCKET_PATH_MAX} fit: {socket}")
        r = msgspec.structs.replace(r, endpoint=f"ipc://{socket}")
        self.server = Server(self, r)
        r = self.server.start(socket, env)
        try:
            paths.write_private(_registration_file(r), msgspec.json.encode(r))
        except BaseException:
            self.server.stop()
            self.server = None
            raise
        return r

    def _publish(self, env: Mapping[str, str]) -> Publisher | None:
        """Publish the agent's endpoint in the store, if the agent listens for other hosts."""
        if not (self.registration.tcp or self.registration.tcp_off):
            return None
        try:
            from pdctl.agent.publish import Publisher

            return Publisher(self.registration, env, self.note)
        except Exception as error:  # no thread to be had: the rank can still be reached where one knows its address
            self.note(f"not published: {error}")
            return None

    def _fault_event(self, what: str, fault: Fault, room: int, text: str) -> None:
        kind = _FAULT_EVENTS.get(what, EventKind.NOTE)
        if kind == EventKind.NOTE:
            text = f"{fault.kind} {what}: {text}" if text else f"{fault.kind} {what}"
        elif kind != EventKind.FAULT_ENDED:
            text = fault.kind
        self.recorder.event(kind, room=room, a=fault.number, b=fault.target_tp, text=text)
        if what in ("armed", "ended"):  # a deliberate fault is the one thing an engine's log must show
            log.warning("pdctl fault %s (%s, %s) %s: %s", fault.id, fault.kind, fault.target, what, text)


def _log_file() -> str:
    """Return the path of what standard error or output is, "" where neither has one. The file system is not asked."""
    for fd in (2, 1):
        try:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
        except OSError:
            continue
        if path.startswith("/") and not path.startswith("/dev/"):
            return path
    return ""


def _registration_file(r: paths.Registration) -> Path:
    return Path(r.endpoint.removeprefix("ipc://")).with_suffix(paths.REGISTRATION_SUFFIX)


def _stop_at_exit(agent: Agent) -> None:
    def stop() -> None:
        try:
            agent.stop()
        except Exception:  # noqa: S110  # at exit there is nobody to tell
            pass

    atexit.register(stop)
    # Children forked by multiprocessing end without running atexit; their own finalizers do run.
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, stop, exitpriority=1)


_of_the_parent: list[Agent] = []


def _forked() -> None:
    """Forget the parent's agent in a forked child: its thread is not here, its files are not ours."""
    Agent._starting = threading.Lock()
    agent, Agent.current = Agent.current, None
    if agent is None:
        return
    _of_the_parent.append(agent)  # never finalized here: its files belong to the parent
    for let_go in (agent.server.forked if agent.server is not None else None, agent.adapter.hooks.remove_all):
        try:
            if let_go is not None:
                let_go()
        except Exception:  # noqa: S110  # the child goes on, hooked or not
            pass


os.register_at_fork(after_in_child=_forked)
