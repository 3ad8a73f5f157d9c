"""Recordings as pandas DataFrames: ``pdctl.load_trace(path)``. docs/dataframes.md explains every column.

Only what loads a trace for analysis imports this module: it needs pandas.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdctl.protocol.errors import PdctlError
from pdctl.protocol.files import is_folder
from pdctl.protocol.model import QUEUES, EventKind, Identity, Phase
from pdctl.recording import format as f
from pdctl.recording.reader import BadRecording, Recording, read_from
from pdctl.recording.rings import EVENT, ITEM, ROUND, hide
from pdctl.recording.source import FileSource, Held
from pdctl.recording.streams import Stream
from pdctl.trace import columns
from pdctl.trace.manifest import MISSING, PARTIAL, SUFFIX, WHOLE, Manifest, TraceRank
from pdctl.trace.reader import open_trace

POLLS = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
ACTIONS = ("kept", "committed", "failed", "aborted", "moved")
PHASES = tuple(phase.name for phase in Phase)
KINDS = tuple(kind.name for kind in EventKind)


@dataclass(frozen=True)
class Trace:
    """Recordings of many ranks as DataFrames; times are of each rank's own clocks, columns as docs/dataframes.md says.

    ranks: one row a rank, indexed by its name, also those whose recording is missing. rounds: one row a run of equal
    rounds. items: one row a request that a run says something of; ``run`` is the row of ``rounds``. events: one row an
    event. manifest: of the trace, None for recordings that are in none. problems: what could not be read, in words.
    """

    ranks: pd.DataFrame
    rounds: pd.DataFrame
    items: pd.DataFrame
    events: pd.DataFrame
    manifest: Manifest | None = None
    problems: tuple[str, ...] = ()
    _streams: dict[tuple[str, str, str], tuple[int, Stream]] = field(default_factory=dict, repr=False)

    def lists(self, queue: str, rank: str, *, group: str = "", first: int = 0, last: int | None = None) -> pd.DataFrame:
        """Return the whole list of ``queue`` on ``rank`` in each run with a round from ``first`` to ``last``.

        Columns as in ``items``; a run whose list can't be rebuilt has no rows. group: the kind of the group, where the
        queue is polled over several. Raises KeyError where that rank never polled the queue.
        """
        name = next((k for k in self._streams if k[:2] == (rank, queue) and group in ("", k[2])), None)
        if name is None:
            there = sorted({k[1] for k in self._streams if k[0] == rank})
            raise KeyError(f"no rounds of {queue} on {rank}; of that rank there are: {', '.join(there) or 'none'}")
        offset, stream = self._streams[name]
        starts, ends = stream.table["ordinal"].astype(np.int64), stream.ends
        chosen = np.flatnonzero((ends >= first) & (starts <= (ends[-1] if last is None else last)))
        tables, runs = [], []
        for index in chosen.tolist():
            rows = stream.rows(index)
            if rows is not None:
                tables.append(rows)
                runs.append(np.full(len(rows), index, np.int64))
        table = np.concatenate(tables) if tables else np.zeros(0, ITEM)
        row = np.concatenate(runs) if runs else np.zeros(0, np.int64)
        table = table.copy()
        hide(table, stream.table, row)
        ids = np.zeros(len(row), np.int64)
        return _items_frame([name[0]], table, row + offset, ids, self.rounds)


def load_trace(path: str | PathLike[str]) -> Trace:
    """Return a trace (``.pdtrace``), a directory of traces and recordings, or one recording (``.pdrec``) as DataFrames.

    Raises PdctlError (UNREACHABLE) if nothing can be read. An unusable recording affects its own rank only: ``problems`` gives
    the reason, and so does its row in ``ranks`` if the rank is known.
    """
    source = Path(path)
    manifest = None
    if is_folder(source):
        loaded = [_load(file) for file in sorted(source.glob("*.pdrec"))]
        for file in sorted(source.glob(f"*{SUFFIX}")):
            loaded += _load_trace(file)[1]
        if not loaded:
            raise PdctlError(f"{source} has no recordings", "Give a trace, or the directory that they are in.")
    elif _magic(source) == f.MAGIC:
        loaded = [_load(source, follow=True)]
    else:
        manifest, loaded = _load_trace(source)
    problems = [f"{rank.file or rank.label}: {rank.reason}" for rank in loaded if rank.reason]
    if all(rank.recording is None for rank in loaded):
        raise PdctlError(f"{source} has no recording that can be read: {'; '.join(problems)}", "Give another one.")
    every = (*(manifest.problems if manifest else ()), *problems)
    return _trace([rank for rank in loaded if rank.identity is not None], manifest, every)


@dataclass
class _Loaded:
    """A rank and its recording. state, kept and reason: as in a manifest."""

    identity: Identity | None
    file: str
    state: str = "recorded"
    kept: str = WHOLE
    reason: str = ""
    recording: Recording | None = None

    @property
    def label(self) -> str:
        return self.identity.label if self.identity else "a rank"


def _magic(path: Path) -> bytes:
    try:
        return FileSource(path, follow=True).read(0, 8)
    except (OSError, ValueError):
        return b""  # who opens it as a trace says why


def _load(path: Path, *, follow: bool = False) -> _Loaded:
    try:
        recording = read_from(Held(FileSource(path, follow=follow)), str(path))
    except (OSError, BadRecording) as error:
        return _Loaded(None, path.name, kept=MISSING, reason=str(error))
    kept = PARTIAL if recording.problems else WHOLE
    return _Loaded(recording.identity, path.name, "recorded", kept, "; ".join(recording.problems), recording)


def _load_trace(path: Path) -> tuple[Manifest, list[_Loaded]]:
    with open_trace(path) as trace:
        return trace.manifest, [_of_trace(rank, trace.folder) for rank in trace.manifest.ranks]


def _of_trace(rank: TraceRank, folder: Path) -> _Loaded:
    if not rank.member:
        return _Loaded(rank.identity, "", rank.state, rank.kept, rank.reason)
    found = _load(folder / Path(rank.member).name)
    if found.recording is None:
        return _Loaded(rank.identity, rank.member, rank.state, MISSING, found.reason)
    found.file, found.state, found.kept = rank.member, rank.state, rank.kept
    found.reason = rank.reason or found.reason
    return found


# ---- frames ----------------------------------------------------------------------------------------------------------


def _trace(loaded: list[_Loaded], manifest: Manifest | None, problems: tuple[str, ...]) -> Trace:
    names = _names([rank.identity for rank in loaded if rank.identity is not None])
    round_parts: list[tuple[int, NDArray[Any], NDArray[np.bool_]]] = []
    item_parts, event_parts = [], []
    groups: list[str] = []
    streams: dict[tuple[str, str, str], tuple[int, Stream]] = {}
    rows = 0
    for number, rank in enumerate(loaded):
        if rank.recording is None:
            continue
        table = columns.rounds(rank.recording.streams)
        items, row, known = columns.items(rank.recording, table)
        for stream in rank.recording.streams:
            streams.setdefault((names[number], stream.queue, stream.group.kind), (rows, stream))
            groups += [stream.group.kind] * len(stream)
            rows += len(stream)
        round_parts.append((number, table, known))
        item_parts.append((number, items, row + rows - len(table)))
        event_parts.append((number, columns.events(rank.recording)))
    rounds = _rounds_frame(names, round_parts, groups, loaded)
    table, row, ids = _joined(item_parts, ITEM)
    return Trace(
        ranks=_ranks_frame(names, loaded),
        rounds=rounds,
        items=_items_frame(names, table, row, ids, rounds),
        events=_events_frame(names, event_parts, loaded),
        manifest=manifest,
        problems=problems,
        _streams=streams,
    )


def _names(identities: list[Identity]) -> list[str]:
    """Return the label of each rank, with its pid where two have the same one, and a number where that is the same, too."""
    twice = {label for label, count in Counter(i.label for i in identities).items() if count > 1}
    names: dict[str, None] = {}
    for i in identities:
        name = own = f"{i.label} pid {i.pid}" if i.label in twice else i.label
        number = 1
        while name in names:  # of another host, or of a trace that somebody made up
            number += 1
            name = f"{own} #{number}"
        names[name] = None
    return list(names)


def _joined(
    parts: list[tuple[int, NDArray[Any], NDArray[np.int64]]], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    table = np.concatenate([part for _, part, _ in parts]) if parts else np.zeros(0, dtype)
    row = np.concatenate([row for _, _, row in parts]) if parts else np.zeros(0, np.int64)
    ids = np.concatenate([np.full(len(part), n, np.int64) for n, part, _ in parts]) if parts else np.zeros(0, np.int64)
    return table, row, ids


def _category(codes: NDArray[Any], names: tuple[str, ...] | list[str], *, ordered: bool = False) -> Any:
    """Return names by their place; a code without a name is missing (NaN)."""
    known = codes.astype(np.int64)
    known = np.where((known >= 0) & (known < len(names)), known, -1)
    return pd.Categorical.from_codes(known, dtype=pd.CategoricalDtype(list(names), ordered=ordered))


def _time(mono_ns: NDArray[np.int64], to_wall: NDArray[np.int64]) -> Any:
    """Return monotonic times on the wall clock; 0, which means never, is NaT."""
    wall = np.where(mono_ns == 0, np.iinfo(np.int64).min, mono_ns + to_wall)
    return pd.DatetimeIndex(wall.view("M8[ns]"), tz="UTC")


def _to_wall(loaded: list[_Loaded]) -> NDArray[np.int64]:
    found = [r.recording.start_wall_ns - r.recording.start_mono_ns if r.recording else 0 for r in loaded]
    return np.asarray(found, np.int64)


def _ranks_frame(names: list[str], loaded: list[_Loaded]) -> pd.DataFrame:
    rows = []
    for rank in loaded:
        assert rank.identity is not None
        i, r = rank.identity, rank.recording
        sizes = {
            f"{axis}{end}": getattr(i, f"{axis}{end}") for axis in ("dp", "pp", "cp", "tp") for end in ("", "_size")
        }
        rows.append(
            {
                "role": i.role, **sizes, "host": i.host, "pid": i.pid, "service": i.service, "instance": i.instance,
                "cluster": i.cluster, "world": i.world, "world_rank": i.world_rank, "engine": i.engine,
                "engine_version": i.engine_version, "pdctl_version": i.pdctl_version, "state": rank.state,
                "kept": rank.kept, "reason": rank.reason, "writer": r.state if r else "", "file": rank.file,
                "ticks": r.ticks if r else 0, "to_wall_ns": r.start_wall_ns - r.start_mono_ns if r else 0,
                "start": r.start_wall_ns if r else 0, "last_turn": r.tick_mono_ns if r and r.ticks else 0,
            }
        )  # fmt: skip
    frame: pd.DataFrame = pd.DataFrame(rows, index=pd.Index(names, name="rank"))
    starts, turns, walls = (frame[name].to_numpy(np.int64) for name in ("start", "last_turn", "to_wall_ns"))
    frame["start"] = _time(starts, np.zeros(len(frame), np.int64))
    frame["last_turn"] = _time(turns, walls)
    return frame


def _rounds_frame(
    names: list[str], parts: list[tuple[int, NDArray[Any], NDArray[np.bool_]]], groups: list[str], loaded: list[_Loaded]
) -> pd.DataFrame:
    table = np.concatenate([part for _, part, _ in parts]) if parts else np.zeros(0, ROUND)
    ids = np.concatenate([np.full(len(t), n, np.int64) for n, t, _ in parts]) if parts else np.zeros(0, np.int64)
    known = np.concatenate([k for _, _, k in parts]) if parts else np.zeros(0, np.bool_)
    to_wall = _to_wall(loaded)[ids] if len(ids) else np.zeros(0, np.int64)
    phase = (table["flags"] & 15).astype(np.int64)
    ordinal, repeat = table["ordinal"].astype(np.int64), table["repeat"].astype(np.int64)
    kinds = sorted(set(groups))
    place = {kind: n for n, kind in enumerate(kinds)}
    made = {
        "rank": _category(ids, names),
        "queue": _category(table["queue"], QUEUES),
        "group": _category(np.fromiter((place[g] for g in groups), np.int64, len(groups)), kinds),
        "ordinal": ordinal,
        "repeat": repeat,
        "last": ordinal + repeat - 1,
        "visit": table["visit"].astype(np.int64),
        "phase": _category(phase - 1, PHASES, ordered=True),
        "n": table["n"].astype(np.int64),
        "n_after": np.where(phase == int(Phase.APPLIED), table["n_after"].astype(np.int64), -1),
        "hash": table["hash"].astype(np.uint64),
        "after_hash": table["after_hash"].astype(np.uint64),
        "full": (table["flags"] >> 4 & f.FLAG_FULL).astype(bool),
        "items": table["items_count"].astype(np.int64),
        "items_known": known,
    }
    for name in ("first", "enter", "done"):
        mono = table[f"t_{name}"].astype(np.int64)
        made[f"{name}_mono_ns"] = mono
        made[name] = _time(mono, to_wall)
    frame: pd.DataFrame = pd.DataFrame(made)
    return frame


def _items_frame(
    names: list[str], table: NDArray[Any], row: NDArray[np.int64], ids: NDArray[np.int64], rounds: pd.DataFrame
) -> pd.DataFrame:
    queue = rounds["queue"].cat.codes.to_numpy()[row]
    found = pd.arrays.IntegerArray(table["found"].astype(np.uint64), (table["flags"] & f.ITEM_FOUND_KNOWN) == 0)
    frame: pd.DataFrame = pd.DataFrame(
        {
            "run": row,
            "rank": _category(ids, names),
            "queue": _category(queue, QUEUES),
            "ordinal": rounds["ordinal"].to_numpy()[row],
            "index": table["index"].astype(np.int64),
            "room": table["room"].astype(np.uint64),
            "slot": table["slot"].astype(np.int64),
            "local": _category(table["local"], POLLS, ordered=True),
            "gated": _category(table["gated"], POLLS, ordered=True),
            "reduced": _category(table["reduced"], POLLS, ordered=True),
            "action": _category(table["action"], ACTIONS),
            "found": found,
        }
    )
    return frame


def _events_frame(names: list[str], parts: list[tuple[int, NDArray[Any]]], loaded: list[_Loaded]) -> pd.DataFrame:
    table = np.concatenate([part for _, part in parts]) if parts else np.zeros(0, EVENT)
    ids = np.concatenate([np.full(len(part), n, np.int64) for n, part in parts]) if parts else np.zeros(0, np.int64)
    mono = table["mono_ns"].astype(np.int64)
    to_wall = _to_wall(loaded)[ids] if len(ids) else np.zeros(0, np.int64)
    frame: pd.DataFrame = pd.DataFrame(
        {
            "rank": _category(ids, names),
            "seq": table["seq"].astype(np.int64),
            "mono_ns": mono,
            "time": _time(mono, to_wall),
            "kind": _category(table["kind"].astype(np.int64) - 1, KINDS),
            "queue": _category(table["queue"], QUEUES),
            "room": table["room"].astype(np.uint64),
            "slot": table["slot"].astype(np.int64),
            "a": table["a"].astype(np.int64),
            "b": table["b"].astype(np.int64),
            "text": [text.decode("utf-8", "replace") for text in table["text"].tolist()],
        }
    )
    return frame
