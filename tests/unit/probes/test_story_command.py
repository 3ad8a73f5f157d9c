"""``pdctl story`` as a user types it: files written, files left alone, and what a wrong room is answered with."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

from pdctl.cli import app
from pdctl.commands.schema import load_schema
from pdctl.probes.story.timescale import scale
from tests.support.story_world import World, served

ROOM, RID = 7203441, "request-1"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of recordings of three hosts: the room is held by the gate for 400 ms."""
    world = World(tmp_path, monkeypatch)
    prefill = world.rank("prefill", offset=10**12, wall_error=10**9, pid=11)
    decode = [world.rank("decode", tp, tp_size=2, offset=tp * 10**11, pid=12 + tp) for tp in (0, 1)]
    served(world, prefill, decode, ROOM, RID, late_ms=400)
    served(world, prefill, decode, ROOM + 9, "request-2")
    folder = tmp_path / "from"
    folder.mkdir()
    for rank in world.ranks:
        (folder / rank.path.name).write_bytes(world.data(rank))
    return folder


def run(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["story", "--from", str(folder), *map(str, arguments)])


def test_people_read_it_in_80_columns(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(recordings, ROOM)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    assert f"room {ROOM} rid {RID}" in text
    assert "held by the gate from round" in text
    assert "slot 3 not written" in text
    assert "± " in text
    assert "by messages between the sides" in text


def test_every_format_carries_the_same_lines(recordings: Path) -> None:
    document = json.loads(run(recordings, RID, "-o", "json").stdout)
    jsonschema.validate(document, load_schema("pdctl.story"))
    assert document["schema"] == "pdctl.story"
    [story] = document["stories"]
    lines = [json.loads(line) for line in run(recordings, RID, "-o", "jsonl").stdout.splitlines()]
    assert [line["text"] for line in lines] == [entry["text"] for entry in story["entries"]]
    rows = list(csv.DictReader(io.StringIO(run(recordings, RID, "-o", "csv").stdout)))
    assert [row["text"] for row in rows] == [entry["text"] for entry in story["entries"]]
    assert yaml.safe_load(run(recordings, RID, "-o", "yaml").stdout)["stories"][0]["room"] == ROOM


def test_an_unknown_room_is_answered_with_those_that_are_known(recordings: Path) -> None:
    done = run(recordings, ROOM + 1)
    assert done.exit_code == 3
    assert done.stdout == ""
    assert f"room {ROOM + 1} never came here: 3 recordings, complete since " in done.stderr
    assert "Look in the router's log" in done.stderr
    assert f"{ROOM} (rid {RID})" in done.stderr
    assert run(recordings, "nothing-like-it").exit_code == 3


def test_a_directory_without_recordings(tmp_path: Path) -> None:
    done = run(tmp_path, ROOM)
    assert done.exit_code == 4
    assert "has no recordings" in done.stderr
    assert run(tmp_path / "no", ROOM).exit_code == 4


def test_half_written_recordings_are_read_as_far_as_they_go(recordings: Path) -> None:
    for file in recordings.glob("decode*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run(recordings, ROOM)
    assert done.exit_code == 0
    assert "decode tp0: cut off" in done.stdout
    for file in recordings.glob("decode*"):
        file.write_bytes(file.read_bytes()[:700])  # not even whose it is
    done = run(recordings, ROOM)
    assert done.exit_code == 3
    assert "whether it came to decode: no decode rank has a recording" in done.stdout
    assert done.stderr.count("not seen or in part: ") == 2


def test_logs_and_spans(recordings: Path, tmp_path: Path) -> None:
    line = f'2026-09-21 14:13:25  INFO http_request{{request_id="gate-0001"}}: smg::request: m.rs:1: started for {RID}'
    (tmp_path / "router.log").write_text(f"other\n{line} room {ROOM}\n")
    out = tmp_path / "spans.json"
    done = run(recordings, "gate-0001", "--logs", tmp_path / "router.log", "--otlp", out, "-o", "json")
    assert done.exit_code == 3, done.output  # the log says no room and no rid as such
    assert "router.log names it once: started for " in done.stderr
    assert not out.exists()
    (tmp_path / "router.log").write_text(f"{line} bootstrap_room={ROOM}\n")
    done = run(recordings, "gate-0001", "--logs", tmp_path / "router.log", "--otlp", out, "-o", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    jsonschema.validate(document, load_schema("pdctl.story"))
    [story] = document["stories"]
    assert story["room"] == ROOM
    assert [e["rank"] for e in story["entries"] if e["kind"] == "log"] == ["router.log"]
    assert "router.log: wall clock of its host" in run(recordings, ROOM, "--logs", tmp_path / "router.log").stdout
    assert json.loads(out.read_text())["resourceSpans"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--logs", "none.log"), "none.log can't be read: No such file or directory"),
        (("--logs", "."), "can't be read: is a directory"),
        (("--otlp", "no/such/t.json"), "is not a directory"),
        (("--otlp", "t.json", "--perfetto", "t.json"), "--perfetto and --otlp name one file"),
    ],
)
def test_logs_and_spans_that_can_not_be(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(recordings, ROOM, *given)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_files_that_exist_are_left_alone_unless_forced(recordings: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    done = run(recordings, ROOM, "--perfetto", there)
    assert done.exit_code == 2
    assert f"{there} exists" in done.stderr
    assert done.stdout == ""
    assert there.read_text() == "mine"
    assert run(recordings, ROOM, "--perfetto", there, "--force").exit_code == 0
    assert json.loads(there.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("--perfetto", "no/such/t.json", "is not a directory"),
        ("--perfetto", ".", "is a directory"),
        ("--plot", "p.pdf", "ends in none of .svg, .png, .html"),
        ("--plot", "p", "ends in none of"),
    ],
)
def test_a_file_that_can_not_be_written(recordings: Path, tmp_path: Path, option: str, name: str, said: str) -> None:
    done = run(recordings, ROOM, option, tmp_path / name)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_nothing_is_written_onto_what_is_no_file(recordings: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "victim").write_text("theirs")
    (tmp_path / "link.json").symlink_to(tmp_path / "victim")
    for name, kind in (
        ("/dev/full", "a device"),
        (tmp_path / "fifo.json", "a FIFO"),
        (tmp_path / "link.json", "a link"),
    ):
        done = run(recordings, ROOM, "--perfetto", str(name), "--force")
        assert done.exit_code == 2
        assert f"is {kind}, which is neither replaced nor written through" in done.output
    assert (tmp_path / "victim").read_text() == "theirs"


def test_pictures(recordings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for form in ("svg", "png", "html"):
        done = run(recordings, ROOM, "--plot", tmp_path / f"p.{form}")
        assert done.exit_code == 0, done.output
        assert f"wrote {tmp_path / f'p.{form}'}" in done.stderr
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    texts = [e.text or "" for e in ET.parse(tmp_path / "p.svg").iter("{http://www.w3.org/2000/svg}text")]
    for wanted in (f"room {ROOM}   rid {RID}", "decode tp1", "held by the gate", "metadata sent", "committed"):
        assert any(wanted in text for text in texts), wanted
    assert any("±" in text for text in texts)
    page = (tmp_path / "p.html").read_text()
    assert "<svg" in page
    assert "held by the gate from round" in page


def test_what_a_rid_says_is_text_in_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    world = World(tmp_path, monkeypatch)
    served(world, world.rank("prefill"), [world.rank("decode")], ROOM, r"<script>$\frac{")
    (tmp_path / "from").mkdir()
    for rank in world.ranks:
        (tmp_path / "from" / rank.path.name).write_bytes(world.data(rank))
    assert run(tmp_path / "from", ROOM, "--plot", tmp_path / "p.html").exit_code == 0
    assert "<script>" not in (tmp_path / "p.html").read_text()
    assert r"$\frac{" in (tmp_path / "p.html").read_text()


def test_without_matplotlib_the_extra_is_named(recordings: Path, tmp_path: Path) -> None:
    """In a Python that has none: the rest of the command works."""
    block = tmp_path / "site"
    block.mkdir()
    (block / "sitecustomize.py").write_text(
        "import importlib.util as u\n_find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else _find(name, *a)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{block}:{ROOT}"}
    command = [sys.executable, "-m", "pdctl.cli", "story", str(ROOM), "--from", str(recordings)]
    plot = [*command, "--plot", str(tmp_path / "p.svg")]
    done = subprocess.run(plot, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'pdctl[plot]'" in done.stderr
    assert not (tmp_path / "p.svg").exists()
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def test_nothing_but_plot_loads_matplotlib(recordings: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("there is none to load")
    code = (
        "import sys\nfrom pdctl.cli import app\n"
        f"app(['story', '{ROOM}', '--from', '{recordings}'], standalone_mode=False)\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_quiet_times_are_drawn_short() -> None:
    drawn = scale([0.0, 1.0, 2.0, 102.0, 103.0], 103.0)
    assert drawn.quiet == ((2.0, 102.0),)
    assert drawn.busy == [(0.0, 2.0), (102.0, 103.0)]
    assert drawn.place(103.0) - drawn.place(102.0) == pytest.approx(1.0)
    assert drawn.place(102.0) - drawn.place(2.0) == pytest.approx(0.75)
    places = [drawn.place(t / 10) for t in range(-20, 1100)]
    assert places == sorted(places)
    assert scale([], 0.0).place(0.0) == 0.0
    assert scale([0.0, 5.0], 5.0).quiet == ()
