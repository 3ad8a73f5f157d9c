"""load_trace says what the reader says, column by column, and docs/dataframes.md says what load_trace gives."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

import pdctl
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import UNKNOWN, EventKind
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, read
from pdctl.trace import manifest
from pdctl.trace.frames import ACTIONS, POLLS
from pdctl.trace.writer import Member, member_of, write_trace
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request
from tests.unit.recording.test_recording_format_doc import table

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "dataframes.md").read_text()
QUEUE = "decode.transfer"


def drive(path: Path, seed: int, turns: int = 200, size: int = f.MIN_SIZE, **who: Any) -> Engine:
    """Record a queue that random requests go through, with a gate that holds some; the last round is left in the collective."""
    rng = random.Random(seed)
    engine = Engine(path, size)
    engine.writer.set_identity(msgspec.json.encode(msgspec.structs.replace(IDENTITY, **who)))
    room = 100
    for turn in range(turns):
        for _ in range(rng.choice([0, 0, 1, 2])):
            room += 1
            engine.queue.append(Request(room, room % 32))
            engine.writer.event(1 + turn % 16, queue=4, room=room, slot=room % 32, a=turn, text=f"räd-{room}")
        for request in engine.queue:
            engine.view.slots[request.slot] = request.room if rng.random() < 0.6 else 0
        local = [rng.choice([2, 3, 4, 4]) for _ in engine.queue]
        reduced = [max(0, poll - rng.choice([0, 0, 1])) for poll in local]
        engine.turn(local, reduced, {r.room for r in engine.queue if rng.random() < 0.2})
    return engine


def by_hand(recording: Recording) -> tuple[list[Any], list[Any]]:
    """Return the runs, and the whole lists, as the reader gives them one by one."""
    runs, lists = [], []
    for stream in recording.streams:
        for run in stream.runs:
            runs.append(
                (run.ordinal, run.repeat, run.phase.name, run.n, run.hash, run.t_first, run.t_enter, run.t_done)
            )
            for index, item in enumerate(stream.items(run) or ()):
                lists.append(
                    (
                        run.ordinal,
                        index,
                        item.room,
                        item.slot,
                        item.local,
                        item.gated,
                        item.reduced,
                        item.action,
                        item.found,
                    )
                )
    return runs, lists


def code(names: tuple[str, ...], word: Any) -> int:
    return UNKNOWN if pd.isna(word) else names.index(word)


def as_rows(frame: pd.DataFrame) -> list[Any]:
    return [
        (
            r.ordinal, r.index, r.room, r.slot, code(POLLS, r.local), code(POLLS, r.gated), code(POLLS, r.reduced),
            code(ACTIONS, r.action), None if pd.isna(r.found) else int(r.found),
        )
        for r in frame.rename(columns={"index": "index_"}).rename(columns={"index_": "index"}).itertuples(index=False)
    ]  # fmt: skip


@pytest.mark.parametrize("turns", [0, 1, 100, 900])  # the last one laps the rings
def test_frames_are_what_the_reader_reads(tmp_path: Path, turns: int) -> None:
    path = tmp_path / "1-2.pdrec"
    engine = drive(path, seed=turns, turns=turns)
    if engine.queue:  # ENTERED: hangs in the collective
        engine.tap.visit(engine.queue)
        engine.tap.polled([r.poller for r in engine.queue])
        engine.tap.raw([3] * len(engine.queue))
        engine.tap.entering(0, bytes([3] * len(engine.queue)), 1)
    recording = read(path)
    trace = pdctl.load_trace(path)
    runs, lists = by_hand(recording)
    columns = ["ordinal", "repeat", "phase", "n", "hash", "first_mono_ns", "enter_mono_ns", "done_mono_ns"]
    assert list(trace.rounds[columns].itertuples(index=False, name=None)) == runs
    rank = recording.identity.label
    if runs:
        assert as_rows(trace.lists(QUEUE, rank)) == lists
        middle = runs[len(runs) // 2][0]
        part = trace.lists(QUEUE, rank, first=middle, last=middle + 3)
        assert as_rows(part) == [
            row for row in lists if row[0] + _repeat(runs, row[0]) > middle and row[0] <= middle + 3
        ]
        assert (trace.rounds.loc[part["run"], "ordinal"].to_numpy() == part["ordinal"].to_numpy()).all()
        whole = trace.rounds["full"] & trace.rounds["items_known"]
        first_full = trace.rounds.index[whole][0]
        mine = trace.items[trace.items["run"] == first_full]
        assert as_rows(mine) == [row for row in lists if row[0] == trace.rounds.loc[first_full, "ordinal"]]
    events = [(e.seq, e.mono_ns, e.kind.name, e.room, e.slot, e.a, e.b, e.text) for e in recording.events()]
    columns = ["seq", "mono_ns", "kind", "room", "slot", "a", "b", "text"]
    assert list(trace.events[columns].itertuples(index=False, name=None)) == events
    assert (trace.events["queue"].astype(str) == QUEUE).all()


def _repeat(runs: list[Any], ordinal: int) -> int:
    return next(run[1] for run in runs if run[0] == ordinal)


def test_times_on_the_wall_clock(tmp_path: Path) -> None:
    drive(tmp_path / "1-2.pdrec", seed=1, turns=20)
    trace = pdctl.load_trace(tmp_path)
    recording = read(tmp_path / "1-2.pdrec")
    to_wall = recording.start_wall_ns - recording.start_mono_ns
    assert trace.ranks["to_wall_ns"].tolist() == [to_wall]
    wall = trace.events["time"].dt.tz_localize(None).astype("datetime64[ns]").astype("int64")
    assert (wall == trace.events["mono_ns"] + to_wall).all()
    assert trace.rounds["done"].isna().tolist() == (trace.rounds["done_mono_ns"] == 0).tolist()


def test_a_torn_or_damaged_recording_costs_what_it_costs(tmp_path: Path) -> None:
    drive(tmp_path / "1-2.pdrec", seed=1)
    whole = pdctl.load_trace(tmp_path / "1-2.pdrec")
    data = bytearray((tmp_path / "1-2.pdrec").read_bytes())
    rounds_at, _, items_at, items, events_at, _ = f.layout(len(data))
    [stream] = read(tmp_path / "1-2.pdrec").streams
    run = next(run for run in stream.runs[20:] if run.items_count)
    data[events_at + 5 * f.EVENT_SIZE + 50] ^= 1
    data[rounds_at + 7 * f.ROUND_SIZE + 13] ^= 1
    data[items_at + run.items_start % items * f.ITEM_SIZE] ^= 1
    (tmp_path / "1-2.pdrec").write_bytes(data)
    (tmp_path / "3-4.pdrec").write_bytes(data[:100])
    trace = pdctl.load_trace(tmp_path)
    assert len(trace.events) == len(whole.events) - 1
    assert len(trace.rounds) == len(whole.rounds) - 1
    assert (~trace.rounds["items_known"]).sum() == 1
    assert trace.ranks["kept"].tolist() == ["partial"]
    assert len(trace.problems) == 2
    cut = tmp_path / "cut.pdrec"
    cut.write_bytes(data[: items_at + 1000])
    trace = pdctl.load_trace(cut)
    assert len(trace.rounds) == len(whole.rounds) - 1
    assert len(trace.events) == 0
    assert trace.ranks["reason"].tolist()[0].startswith("cut off")


def test_many_ranks_of_a_trace(tmp_path: Path) -> None:
    members = []
    for tp in range(3):
        path = tmp_path / f"{tp + 1}-1.pdrec"
        drive(path, seed=tp, turns=50, tp=tp, tp_size=4, pid=tp + 1)
        members.append(member_of(path.read_bytes(), state="live"))
    lost = msgspec.structs.replace(IDENTITY, tp=3, tp_size=4, pid=4)
    members.append(
        Member(manifest.TraceRank(rank=lost.label, state="dead", kept="missing", identity=lost, reason="gone"))
    )
    write_trace(tmp_path / "t.pdtrace", members, manifest.new("test"))
    trace = pdctl.load_trace(tmp_path / "t.pdtrace")
    assert trace.ranks.index.tolist() == [f"decode dp0 pp0 tp{n}" for n in range(4)]
    assert trace.ranks["kept"].tolist() == ["whole", "whole", "whole", "missing"]
    assert trace.problems == ("decode dp0 pp0 tp3: gone",)
    assert trace.manifest is not None
    for tp in range(3):
        name = f"decode dp0 pp0 tp{tp}"
        one = pdctl.load_trace(tmp_path / f"{tp + 1}-1.pdrec")
        for frame in ("rounds", "events"):
            mine = getattr(trace, frame)
            mine = mine[mine["rank"] == name].drop(columns="rank").reset_index(drop=True)
            pd.testing.assert_frame_equal(
                mine, getattr(one, frame).drop(columns="rank"), check_categorical=frame == "events"
            )
        items = trace.items[trace.items["rank"] == name]
        assert (trace.rounds.loc[items["run"], "rank"] == name).all()
        lists = trace.lists(QUEUE, name)
        assert (trace.rounds.loc[lists["run"], "rank"] == name).all()
        assert as_rows(lists) == as_rows(one.lists(QUEUE, name))
    with pytest.raises(KeyError, match=r"there are: decode\.transfer"):
        trace.lists("waiting", "decode dp0 pp0 tp1")


def test_two_ranks_of_one_place_are_told_apart(tmp_path: Path) -> None:
    for pid in (1, 2):
        drive(tmp_path / f"{pid}-1.pdrec", seed=pid, turns=5, pid=pid)
    names = pdctl.load_trace(tmp_path).ranks.index.tolist()
    assert names == ["decode dp0 pp0 tp0 pid 1", "decode dp0 pp0 tp0 pid 2"]


def test_ranks_of_one_label_and_one_pid_on_two_hosts_are_two_rows(tmp_path: Path) -> None:
    for host in ("a", "b"):
        drive(tmp_path / f"{host}.pdrec", 1, turns=3, pid=1, host=host)
    trace = pdctl.load_trace(tmp_path)
    names = ["decode dp0 pp0 tp0 pid 1", "decode dp0 pp0 tp0 pid 1 #2"]
    assert trace.ranks.index.tolist() == names
    assert sorted(set(trace.events["rank"])) == names


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "no recordings"), (tmp_path / "no.pdtrace", "No such file")):
        with pytest.raises(PdctlError, match=words):
            pdctl.load_trace(path)
    (tmp_path / "1-2.pdrec").write_bytes(f.MAGIC)
    with pytest.raises(PdctlError, match="no recording that can be read"):
        pdctl.load_trace(tmp_path)
    with pytest.raises(PdctlError, match="no recording that can be read"):
        pdctl.load_trace(tmp_path / "1-2.pdrec")


def test_pdctl_itself_loads_no_pandas() -> None:
    modules = "pdctl, pdctl.trace.reader, pdctl.targets.find"
    program = f"import sys, {modules}; print('pandas' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("frame", ["ranks", "rounds", "items", "events"])
def test_every_column_is_documented_with_its_type(tmp_path: Path, frame: str) -> None:
    drive(tmp_path / "1-2.pdrec", seed=1, turns=30)
    found = getattr(pdctl.load_trace(tmp_path), frame)
    section = DOCUMENT.partition(f"\n## {frame}\n")[2].partition("\n## ")[0]
    documented = {}
    for names, dtypes, _ in re.findall(r"^\| ([a-z_0-9, ]+) \| ([^|]+) \|(.*)\|$", section, re.MULTILINE):
        if names == "Column":
            continue
        kinds = dtypes.strip().split(", ") if not dtypes.startswith("datetime") else [dtypes.strip()]
        columns = names.split(", ")
        documented |= dict(zip(columns, kinds if len(kinds) == len(columns) else kinds * len(columns), strict=True))
    assert documented == dict(found.dtypes.astype(str).replace("object", "str").items())


def test_categories_name_every_kind_and_poll() -> None:
    rows = table("| Value | Poll |", "")
    assert [row[1].replace("_", "").lower() for row in rows] == [name.lower() for name in POLLS]
    assert [row[2].lower() for row in rows] == list(ACTIONS)
    assert [kind.value for kind in EventKind] == list(range(1, len(EventKind) + 1))
    assert np.iinfo(np.uint8).max == UNKNOWN
