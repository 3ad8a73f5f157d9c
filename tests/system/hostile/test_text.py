"""Text that a client of the engine or a colleague chose does nothing on its way out: in no command, in no format.

A request's id and every text of a trace carry what moves a terminal's cursor, forges a line, changes the direction of
writing, is markup, or a formula. What names a rank may have no control characters: a rank that has them is refused.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
import zmq
from typer.testing import CliRunner, Result

from pdctl.cli import app
from pdctl.protocol.model import Action, EventKind
from pdctl.recording.source import Source
from pdctl.report.output import Format, Output
from pdctl.trace import manifest
from pdctl.trace.writer import member_of, write_trace
from tests.support.labs import Labs
from tests.support.patience import until
from tests.support.story_world import MS, Request, World, served

FORGED = "PD000 forged line"
RID = "=r\x1b[2J\n\u202e[red]z\x9b\u200b"
POISON = (
    f"\x1b]0;owned\x07\x1b[2J\n{FORGED}\r\n{FORGED}\x85{FORGED}\u2028{FORGED} [red]x[/red] \u202e\u2066\u200b\x7f\x9b1m"
    '"""\'"$\\frac{<script>x()</script>&@SCRIPT@'
)
NAMED = "".join(char for char in POISON if unicodedata.category(char) not in ("Cc", "Zl", "Zp"))
"""What of POISON the name of a rank, a host or an engine may have."""
REFUSED = (30, 31)
"""Process ids of the ranks whose names have all of POISON."""
COMMANDS = (
    "ranks", "diff-queues", "stuck", "verify-routing 8", "stacks", "check", "dump metadata", "dump groups", "story 7",
    "story 8",
)  # fmt: skip


def poisoned(value: Any, poison: str) -> Any:
    """Return ``value`` with ``poison`` behind every text in it, but for the few whose words mean something to pdctl."""
    if isinstance(value, str):
        return value + poison
    if isinstance(value, msgspec.Struct):
        keep = ("role", "kind", "kept", "member", "sha256", "state", "endpoint", "recording")
        return msgspec.structs.replace(
            value,
            **{name: poisoned(getattr(value, name), poison) for name in value.__struct_fields__ if name not in keep},
        )
    return tuple(poisoned(each, poison) for each in value) if isinstance(value, tuple) else value


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of a prefill rank and two decode ranks that part in room 8, every text of which is hostile.

    Two more prefill ranks have names that no rank may have: one in its recording, the other in the manifest, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path_factory.mktemp("world"), patch)
        prefill, *decode = (
            world.rank("prefill", host="p", pid=10),
            *(world.rank("decode", tp, tp_size=2, host="d", pid=20 + tp) for tp in range(2)),
        )
        served(world, prefill, decode, 7, "r7")
        for rank in decode:
            rank.enter("decode.transfer", Request(8, RID, slot=3, poll=2, there=rank is decode[0]))
        world.round("decode.transfer", decode, reduced=2)
        for rank in decode:
            rank.queues["decode.transfer"][0].poll = 4
        world.round("decode.transfer", decode[:1], reduced=4, leaves=Action.COMMITTED)
        world.round("decode.transfer", decode[1:], reduced=4, leaves=Action.KEPT)
        world.now += 3_000 * MS
        for rank in world.ranks:
            rank.event(EventKind.FAULT_FIRED, room=8, a=1, text=POISON[:60])
            rank.writer.set_identity(msgspec.json.encode(poisoned(rank.identity, NAMED)))
        members = []
        for rank in world.ranks:
            member = member_of(world.data(rank))
            told = msgspec.structs.replace(member.rank, reason=POISON, problems=(POISON,))
            members.append(replace(member, rank=told))
        for pid in REFUSED:
            rank = world.rank("prefill", host="q", pid=pid, service=f"prefill q:{pid}", instance=f"q {pid}")
            member, refused = member_of(world.data(rank)), poisoned(rank.identity, POISON)
            rank.writer.set_identity(msgspec.json.encode(refused))
            if pid == REFUSED[1]:
                member = replace(member, rank=msgspec.structs.replace(member.rank, identity=refused))
            members.append(replace(member, data=Source(world.data(rank))))
        made = msgspec.structs.replace(
            manifest.new(f"stopped{POISON}"), problems=(POISON,), pdctl_version=NAMED, redacted=False
        )
        made = msgspec.structs.replace(made, clock=poisoned(made.clock, NAMED))
        target = tmp_path_factory.mktemp("trace") / "hostile.pdtrace"
        write_trace(target, members, made)
    return target


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def assert_harmless(text: str) -> None:
    assert [char for char in text if not (char.isprintable() or char == "\n")] == []
    assert [line for line in text.splitlines() if line.lstrip(" │├└").startswith(FORGED)] == []


@pytest.fixture
def every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is run once, and writes what it found in every format, that which was asked for last."""
    once = Output.document

    def document(self: Output, *what: Any, **how: Any) -> None:
        asked = self.format
        for form in (*(form for form in Format if form is not asked), asked):
            self.format = form
            once(self, *what, **how)

    monkeypatch.setattr(Output, "document", document)


@pytest.mark.usefixtures("every_format")
@pytest.mark.parametrize("form", ["table", "wide"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_trace_does_nothing_to_a_terminal(command: str, form: str, trace: Path) -> None:
    done = run(*command.split(), "--from", trace, "-o", form)
    assert done.exit_code in (0, 1, 3), done.output  # judged, or in part: nothing here is about what it found
    assert "error of pdctl's own" not in done.stderr
    assert '"schema"' in done.stdout
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)


def test_a_rank_with_control_characters_in_its_name_is_one_line_with_a_reason(trace: Path) -> None:
    done = run("ranks", "--from", trace)
    assert done.exit_code == 3, done.output
    said = [line for line in done.output.splitlines() if "characters that may not be there" in line]
    assert len(said) == len(REFUSED), done.output
    recorded, listed = sorted(said, key=lambda line: " of the manifest " in line)
    assert recorded.endswith("-30.pdrec: its identity can't be read: characters that may not be there - at `$.engine`")
    assert "rank 5 of the manifest can't be true and was left out: characters that may not be there - at" in listed
    found = json.loads(run("ranks", "--from", trace, "-o", "json").stdout)
    assert [(rank["role"], rank["tp"]) for rank in found["ranks"]] == [("prefill", 0), ("decode", 0), ("decode", 1)]
    assert found["problems"][0] == POISON


@pytest.mark.usefixtures("every_format")
def test_recording_a_hostile_trace_anew_says_so_harmlessly(trace: Path, tmp_path: Path) -> None:
    done = run("record", tmp_path / "again$(id)\n.pdtrace", "--from", trace, "--keep-names")
    assert done.exit_code == 3, done.output
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)


def test_people_see_what_is_in_it_and_programs_get_it_as_it_is(trace: Path) -> None:
    drawn = run("story", 8, "--from", trace).stdout
    assert r"rid =r\x1b[2J\n\u202e[red]z\x9b\u200b" in drawn
    [story] = json.loads(run("story", 8, "--from", trace, "-o", "json").stdout)["stories"]
    assert story["rids"] == [RID]
    assert yaml.safe_load(run("story", 8, "--from", trace, "-o", "yaml").stdout)["stories"] == [story]
    assert json.loads(run("ranks", "--from", trace, "-o", "jsonl").stdout.split("\n")[0])["engine"] == f"tiny{NAMED}"
    rows = list(csv.reader(io.StringIO(run("ranks", "--from", trace, "-o", "csv").stdout)))
    assert len(rows) == 1 + 3


def test_a_test_made_of_a_hostile_trace_has_its_text_in_a_docstring_only(trace: Path, tmp_path: Path) -> None:
    made = tmp_path / "test_made.py"
    done = run("replay", trace, "--emit-test", made)
    assert done.exit_code == 0, done.output
    source = made.read_text()
    assert_harmless(source)
    module = ast.parse(source)
    assert FORGED in (ast.get_docstring(module) or "")
    [script] = [
        node for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SCRIPT"
    ]
    assert set(ast.literal_eval(script.value)) == {"ranks", "turns", "slots", "requests"}
    module.body.remove(module.body[0])
    assert FORGED not in ast.unparse(module)


class Seen(HTMLParser):
    """The elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.add(tag)


@pytest.mark.parametrize("form", ["svg", "html"])
@pytest.mark.parametrize("command", ["story 8", "replay"])
def test_a_picture_of_a_hostile_trace_has_text_only(command: str, form: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / f"picture.{form}"
    if command == "replay":
        from pdctl.commands.replay_rounds import Asked, picture

        file.write_bytes(picture(trace, Asked(plot=file)))
    else:
        done = run(*command.split(), "--from", trace, "--plot", file)
        assert done.exit_code == 3, done.output  # two of its ranks have names that no rank may have
    page = file.read_text()
    assert "script" not in Seen(page).elements
    if form == "svg":
        ElementTree.fromstring(page)


def test_a_perfetto_trace_is_json_whatever_is_in_it(trace: Path, tmp_path: Path) -> None:
    assert run("story", 8, "--from", trace, "--perfetto", tmp_path / "x.json").exit_code == 3
    assert json.dumps(RID)[1:-1] in json.dumps(json.loads((tmp_path / "x.json").read_text()))


def test_a_live_request_whose_client_chose_a_hostile_id() -> None:
    with Labs() as labs, zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        lab = labs.up("--decode", "tp=1")
        socket.linger = 0
        socket.connect(f"ipc://{labs.folder}/run/lab-lab/prefill-dp0.req")
        request = {"op": "generate", "rid": RID, "room": 77, "prompt": [1, 2], "max_new_tokens": 2}
        socket.send(msgspec.msgpack.encode({**request, "reply": f"ipc://{labs.folder}/none.reply"}))
        until("what is to come", lambda: any(77 in rooms for rank in lab.queues().values() for rooms in rank.values()))
        seen = 0
        for command in ("dump queues", "stuck --older 0.001s", "story 77"):
            for form in ("table", "csv"):
                done = labs.cli(*command.split(), "-o", form, code=None)
                assert done.returncode in (0, 1), (
                    done.stderr
                )  # whether a lone request is stuck yet is not what this is about
                assert_harmless(done.stdout)
                assert_harmless(done.stderr)
                seen += r"=r\x1b[2J\n\u202e[red]z\x9b\u200b" in done.stdout
        assert seen
