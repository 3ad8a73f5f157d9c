"""An SGLang rank read from outside: identity, queues, rooms, metadata rows, settings, and the call of its main thread.

The engine adapter (:mod:`pdctl.engines.sglang`) knows the locations. Its readers use proxies of the rank's objects in the same
way as the objects themselves inside a rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from pdctl.agent.injected import engine_of
from pdctl.engines import request_tables as room_reader
from pdctl.engines.metadata_rows import holders, select_slots
from pdctl.engines.sglang import metadata_rows, request_tables, seams, steps
from pdctl.engines.sglang.identity import Around, identify
from pdctl.engines.sglang.queues import QueueReader
from pdctl.introspect.proxy import Modules, Proxy, World, address_of, modules
from pdctl.introspect.pyspy import Stack
from pdctl.introspect.rows import Column, Rows
from pdctl.introspect.target import OpenProcess, Sample, UnreadableError
from pdctl.protocol.files import read_regular
from pdctl.protocol.metadata import MAX_SLOTS, Metadata, SlotRow, Tensor, Wanted
from pdctl.protocol.model import Call, Identity, Seam, Snapshot, Status
from pdctl.protocol.numbers import whole
from pdctl.protocol.processes import look
from pdctl.protocol.requests import Rooms, Settings

_C10D = "torch.distributed.distributed_c10d"
_MODULES = ("os", "sglang", "sglang.version", seams.UTILS, seams.DECODE, seams.COMMON, *seams.CONNECTIONS, _C10D)
"""Those that are asked for what no scheduler has."""
_C10D_FILE = "torch/distributed/distributed_c10d.py"
_MAX_HOSTNAME = 4096
_FRESH_NS = 1_000_000_000
"""So long the stack that a rank was opened with is told of as where it is: once."""
_COORDINATORS = ("world_group", "tp_group", "pp_group", "attn_tp_group")


def is_scheduler(found: Proxy) -> bool:
    """Return whether an object is an SGLang scheduler, by what it has."""
    return engine_of(found.pdctl_world.objects.attributes(address_of(found))) == "sglang"


class OutsideRank:
    """One readable rank. All methods raise UnreadableError if the rank can't be read.

    identity: as an agent would give it, without the agent's own fields. last: how the last sample was taken.
    """

    def __init__(self, target: OpenProcess) -> None:
        self.target = target
        self.last = Sample()
        self._told = False
        self._address = target.root(is_scheduler)
        if not self._address:
            where = f", its main thread is in {target.stack.frames[0].function}" if target.stack.frames else ""
            raise UnreadableError(
                f"no SGLang scheduler is on its main thread's stack{where}", "It may be starting; ask again in a while."
            )
        self._loaded: dict[str, int] = target.glance(self._address, lambda s, world: modules(world, s, _MODULES))
        self._kinds: dict[int, str] = {}
        self._environ: dict[str, str] = target.glance(self._address, lambda _, world: _environ(self._modules(world)))
        self.identity: Identity = self._look(self._identify)

    def _look(self, read: Any) -> Any:
        value, self.last = self.target.look(self._address, read)
        return value

    def _modules(self, world: World) -> Modules:
        return Modules(world, self._loaded)

    # ---- who it is ---------------------------------------------------------------------------------------------------

    def _identify(self, scheduler: Any, world: World) -> Identity:
        loaded = self._modules(world)
        process = self.target.process
        around = Around(
            host=_host(self.target.pid),
            pid=self.target.pid,
            proc_start=process.start,
            parent=_parent(self.target.pid),
            world_rank=_world_rank(scheduler, loaded),
            ranks_of=lambda group: _table(loaded, "_pg_group_ranks").get(group, ()),
            number_of=lambda group: _number(_table(loaded, "_pg_names").get(group, "")),
            agreed=lambda mine: mine,
            modules=loaded,
        )
        identity, groups = identify(scheduler, around)
        self._kinds = {address_of(group): kind for group, kind in groups.kinds() if isinstance(group, Proxy)}
        return msgspec.structs.replace(identity, pdctl_version="", started_wall_ns=_started(process.start))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def status(self, timeout_s: float) -> Status:
        """Return the call of the main thread.

        Without an agent, turns and rounds are not counted. ticks only grows whenever the main thread has run.
        """
        target = self.target
        now_ns, now_runs = time.monotonic_ns(), target.runs()
        seen_ns, runs, stack = target.opened_ns, target.opened_runs, target.stack
        if self._told or now_ns - seen_ns > _FRESH_NS:
            seen_ns, runs = now_ns, now_runs
            stack = target.look_at_stack(timeout_s)
        self._told = True
        return Status(
            identity=self.identity,
            mono_ns=seen_ns,
            ticks=runs,
            tick_mono_ns=0,
            call=self._call(stack),
            stack=stack.frames,
            rounds={},
            seams=(),
            recording="",
            recording_off="no agent is in it",
            hook_errors={},
            hooks_removed=(),
            faults=(),
            agent_cpu_s=0.0,
        )

    def queues(self) -> Snapshot:
        """Return the queues and the slots that belong to a request."""
        snapshot: Snapshot = self._look(self._queues)
        return snapshot

    def _queues(self, scheduler: Any, world: World) -> Snapshot:
        reader, rows = self._reader(scheduler, world)
        found, missing = reader.read()
        if rows.off and self.identity.role != seams.UNIFIED:
            missing = {**missing, "slots": rows.off}
        return Snapshot(time.monotonic_ns(), 0, found, reader.slots(), missing)

    def rooms(self) -> Rooms:
        """Return what the rank knows of its rooms beyond its queues."""
        found: Rooms = self._look(self._rooms)
        return found

    def _rooms(self, scheduler: Any, world: World) -> Rooms:
        reader, _ = self._reader(scheduler, world)
        where = request_tables.places(scheduler, self.identity.role, reader, self._modules(world))
        found = room_reader.read(where, *reader.read(), 0)
        free = getattr(getattr(scheduler, "req_to_metadata_buffer_idx_allocator", None), "free_slots", None)
        if free is not None:  # what available_size() would say
            found = msgspec.structs.replace(found, space=msgspec.structs.replace(found.space, slots_free=len(free)))
        return found

    def metadata(self, wanted: Wanted) -> Metadata:
        """Return the metadata slots asked for, and every request of this rank; never what is in a row."""
        found: Metadata = self._look(lambda scheduler, world: self._metadata(scheduler, world, wanted))
        return found

    def _metadata(self, scheduler: Any, world: World, wanted: Wanted) -> Metadata:
        reader, rows = self._reader(scheduler, world)
        identity = self.identity
        facts = metadata_rows.facts(scheduler, identity.role, identity.lacks, self._modules(world), self._environ)
        held = holders(reader.read()[0], metadata_rows.elsewhere(scheduler))
        free = set(getattr(getattr(scheduler, "req_to_metadata_buffer_idx_allocator", None), "free_slots", ()))
        there = {} if rows.off else {slot: rows.room(slot) for slot in range(rows.count)}
        slots = [] if rows.off else select_slots(wanted, range(rows.count), free, held, there)
        left_out, slots = max(0, len(slots) - MAX_SLOTS), slots[:MAX_SLOTS]
        sums = {slot: tuple(map(crc32, rows.content(slot))) for slot in slots} if wanted.sums else {}
        return Metadata(
            mono_ns=time.monotonic_ns(),
            ticks=0,
            device="" if rows.off else "cpu",
            tensors=tuple(Tensor(place.name, "", place.row_bytes) for place in rows.places),
            aux=facts.aux,
            aux_why=facts.aux_why,
            gate=facts.gate,
            zeroed=facts.zeroed,
            slots=rows.count,
            holders=held,
            rows=[SlotRow(s, there[s], 0.0 if s in free else -1.0, 0, sums.get(s, ())) for s in slots],
            left_out=left_out,
            not_read=rows.off,
        )

    def settings(self) -> Settings:
        """Return the settings that both sides must agree on, and the engine's environment variables that are set."""
        found: Settings = self._look(lambda scheduler, _: request_tables.settings(scheduler, self._environ))
        return found

    def _reader(self, scheduler: Any, world: World) -> tuple[QueueReader, Rows]:
        rows = Rows(scheduler, world)
        seam = Seam("slots", not rows.off, rows.off or f"MetadataBuffers.bootstrap_room, {rows.count} slots")
        return QueueReader(scheduler, self.identity.role, (None if rows.off else Column(rows), seam)), rows

    # ---- where its main thread is ------------------------------------------------------------------------------------

    def _call(self, stack: Stack) -> Call:
        from pdctl.agent.stack import OPS

        inside = steps.step_of(stack.frames)
        for frame, file, names in zip(stack.frames, stack.files, stack.locals, strict=True):
            if frame.function in OPS and file.endswith(_C10D_FILE):
                group = next((local.addr or 0 for local in names if local.name == "group"), 0)
                return Call(op=frame.function, group=self._kinds.get(group, ""), inside=inside, source="stack")
        return Call(inside=inside)


def _world_rank(scheduler: Any, loaded: Mapping[str, Any]) -> int:
    for name in _COORDINATORS:  # GroupCoordinator.rank is torch.distributed.get_rank()
        rank = getattr(getattr(scheduler, name, None), "rank", None)
        if isinstance(rank, int):
            return rank
    group = getattr(scheduler, "attn_tp_cpu_group", None)
    members, place = (
        list(_table(loaded, "_pg_group_ranks").get(group, ())),
        seams.coordinate(scheduler, "attn_tp_rank", 0),
    )
    return int(members[place]) if place < len(members) else 0


def _table(loaded: Mapping[str, Any], name: str) -> dict[Any, Any]:
    """Return one of torch's tables of process groups (torch 2.0 to 2.13), {} where torch keeps it elsewhere."""
    found = getattr(loaded.get(_C10D), name, None)
    return found if isinstance(found, dict) else {}


def _number(name: Any) -> int:
    number = whole(name) if isinstance(name, str) else None
    return -1 if number is None else number


def _environ(loaded: Modules) -> dict[str, str]:
    # /proc/PID/environ is no source: setproctitle writes over it
    held = getattr(loaded["os"].environ, "_data", {}) if "os" in loaded else {}
    return {os.fsdecode(name): os.fsdecode(value) for name, value in held.items()}


def _host(pid: int) -> str:
    """Return what the process calls its host: its container may have a name of its own."""
    try:
        if Path(f"/proc/{pid}/ns/uts").readlink() != Path("/proc/self/ns/uts").readlink():
            raw = read_regular(f"/proc/{pid}/root/etc/hostname", _MAX_HOSTNAME, follow=True)
            return raw.decode(errors="replace").strip() or socket.gethostname()
    except OSError:
        pass
    return socket.gethostname()


def _parent(pid: int) -> tuple[int, int]:
    """Return pid and start of the process's parent, the pid as the process itself sees it."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    parent = int(fields[1])
    if (
        parent == 1
        and int(fields[3]) != 1
        and fields[3] != Path("/proc/1/stat").read_bytes().rpartition(b")")[2].split()[3]
    ):
        # An orphan: what started it has ended. Ranks that were started together still have one session.
        return int(fields[3]), 0
    inside = parent
    if parent:
        lines = Path(f"/proc/{parent}/status").read_text(errors="replace").splitlines()
        depth = len(_namespaces(Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()))
        seen = _namespaces(lines)
        inside = seen[depth - 1] if 0 < depth <= len(seen) else parent
    return inside, look(parent).start


def _namespaces(lines: list[str]) -> list[int]:
    return next((list(map(int, line.split()[1:])) for line in lines if line.startswith("NSpid:")), [])


def _started(start_ticks: int) -> int:
    """Return the wall time, in ns, at which a process began that /proc says began ``start_ticks`` after boot."""
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time_ns() - int((up_s - start_ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
