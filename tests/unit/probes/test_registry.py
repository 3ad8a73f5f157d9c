"""Every probe alike: its help, its formats, what becomes of it where nobody is there, and one rule for the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.probes.base import AnyProbe
from pdctl.probes.registry import PROBES, Entry, abouts, stages
from pdctl.probes.run import EXIT_CODES, choose, draw_within, exit_code, look
from pdctl.probes.view import View
from pdctl.protocol.documents import Document
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.rank import FoundRank
from pdctl.report.findings import Finding, finding
from pdctl.report.output import Format, Output
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from pdctl.targets.selectors import Selection
from tests.support.drawing import drawing
from tests.support.identities import identity

TRACE = Path(__file__).resolve().parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = "16851422098683615"
SHORT = {"check": {"pause": 0.001}}
INFO, WARNING, ERROR = (finding(code, "x") for code in ("PD140", "PD141", "PD142"))
NOBODY = finding("PD112", "x")

every = pytest.mark.parametrize("entry", PROBES, ids=lambda entry: entry.command.replace(" ", "-"))


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "300", "PDCTL_OUTSIDE": "off"})
    return done.exit_code, done.stdout, done.stderr


def words_of(entry: Entry) -> list[str]:
    return [*entry.command.split(), *([ROOM] if entry.command == "story" else [])]


@every
def test_its_help_says_what_it_does_and_what_it_exits_with(entry: Entry) -> None:
    code, text, _ = invoke(*entry.command.split(), "--help")
    assert code == 0
    assert EXIT_CODES in " ".join(text.split())
    probe = entry.load()
    doc = type(probe).__doc__
    assert doc is not None
    assert " ".join(doc.partition("\n\n")[0].split()) in " ".join(text.split())
    for option in ("--output", "--run-dir", "--record-dir", "--timeout", "--rank-timeout"):
        assert option in text
    there = {"--from": probe.offline or bool(probe.bundled), "--rank ": probe.selects, "--all ": probe.starts}
    assert {option: option in text for option in there} == there


def test_the_help_of_pdctl_has_a_line_for_each() -> None:
    assert list(abouts())[:4] == ["check", "ranks", "diff-queues", "stuck"]
    assert all(abouts().values())
    assert {entry.command.partition(" ")[0] for entry in PROBES} == set(abouts())


def test_the_stages_of_check_go_from_cheap_to_intrusive() -> None:
    names = [stage.name for stage in stages()]
    assert names == ["ranks", "config", "queues", "routing", "metadata", "stuck", "stacks", "leaks"]
    assert all(stage.about and stage.cost for stage in stages())


@every
def test_where_there_are_no_ranks_it_says_so(entry: Entry, tmp_path: Path) -> None:
    where = ("--run-dir", str(tmp_path / "run"), "--record-dir", str(tmp_path / "record"))
    code, text, said = invoke(*words_of(entry), *where)
    assert (code, text) == (4, "")
    assert "no ranks found in" in said


def at_nobody(entry: Entry) -> Any:
    """Return the document of a look at no rank."""
    probe = entry.load()
    options = probe.in_check(0.001) if entry.stage else probe.options(**SHORT.get(entry.command, {}))
    with Client() as client:
        return look(probe, View(Found(), client), options)


def header_without_rows(entry: Entry) -> str:
    probe = entry.load()
    out = io.StringIO()
    rows = probe.rows(SimpleNamespace(stories=())) if entry.command == "story" else probe.rows(at_nobody(entry))
    assert not rows.rows or entry.command == "check"
    Output(Format.CSV, out=out, env={}).document(Document(), rows)
    return out.getvalue().splitlines()[0]


@pytest.mark.parametrize("entry", [e for e in PROBES if e.command != "story"], ids=lambda entry: entry.command)
@pytest.mark.parametrize("form", Format)
def test_every_format_of_a_look_at_nobody(entry: Entry, form: Format) -> None:
    probe = entry.load()
    document = at_nobody(entry)
    out = io.StringIO()
    Output(form, out=out, env={}).document(document, probe.rows(document), drawing(probe, form))
    if form is Format.JSON:
        jsonschema.validate(json.loads(out.getvalue()), msgspec.json.schema(type(document)))


@pytest.mark.parametrize("entry", [e for e in PROBES if e.load().offline], ids=lambda entry: entry.command)
def test_csv_has_one_header_and_jsonl_a_line_for_each_row_and_finding(entry: Entry) -> None:
    words = (*words_of(entry), "--from", str(TRACE))
    document = json.loads(invoke(*words, "-o", "json")[1])
    lines = [json.loads(line) for line in invoke(*words, "-o", "jsonl")[1].splitlines()]
    findings = [line for line in lines if line["schema"] == "pdctl.finding"]
    assert [line["code"] for line in findings] == [found["code"] for found in document.get("findings", ())]
    assert {line["of"] for line in findings} <= {document["schema"]}
    assert {line["schema"] for line in lines if line not in findings} <= {document["schema"]}
    assert invoke(*words, "-o", "csv")[1].splitlines()[0] == header_without_rows(entry)
    assert invoke(*words, "-o", "csv", "--findings")[1].startswith("code,level,summary,")
    only = invoke(*words, "-o", "jsonl", "--findings")[1].splitlines()
    assert [json.loads(line) for line in only] == findings


def test_findings_alone_are_for_formats_of_lines() -> None:
    code, text, said = invoke("ranks", "--from", str(TRACE), "--findings")
    assert (code, text) == (2, "")
    assert "-o jsonl and -o csv" in said


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("entry", [e for e in PROBES if e.load().offline], ids=lambda entry: entry.command)
def test_every_format_of_a_trace(entry: Entry, form: Format) -> None:
    code, text, said = invoke(*words_of(entry), "--from", str(TRACE), "-o", form.value)
    assert code in (0, 1, 3)
    assert text or form is Format.JSONL
    assert "Traceback" not in said
    if form in (Format.JSON, Format.JSONL) and text:
        assert json.loads(text.splitlines()[0] if form is Format.JSONL else text)["schema"].startswith("pdctl.")


# ---- one rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "seen", "partial", "level", "code"),
    [
        ((), True, False, "warning", Exit.CLEAN),
        ((), True, True, "warning", Exit.PARTIAL),
        ((), False, True, "warning", Exit.UNREACHABLE),
        ((INFO,), True, False, "warning", Exit.CLEAN),
        ((INFO,), True, True, "warning", Exit.PARTIAL),
        ((INFO,), True, False, "info", Exit.FINDING),
        ((WARNING,), True, True, "warning", Exit.FINDING),
        ((WARNING,), True, False, "error", Exit.CLEAN),
        ((INFO, ERROR), True, False, "error", Exit.FINDING),
        ((ERROR,), False, True, "warning", Exit.FINDING),
        ((NOBODY,), True, True, "warning", Exit.FINDING),
        ((NOBODY,), False, True, "warning", Exit.UNREACHABLE),
    ],
)
def test_the_exit_code(findings: tuple[Finding, ...], seen: bool, partial: bool, level: str, code: Exit) -> None:
    assert exit_code(findings, seen=seen, partial=partial, level=level) is code


@pytest.mark.parametrize("entry", [e for e in PROBES if e.load().selects and e.load().offline], ids=lambda e: e.command)
def test_a_pattern_that_means_no_rank_is_wrong_usage_and_names_those_there_are(entry: Entry) -> None:
    code, _, said = invoke(*entry.command.split(), "--from", str(TRACE), "--rank", "decode", "--rank", "decode:tp7")
    assert code == 2
    assert "no rank matches 'decode:tp7'" in said
    assert "There are: decode dp0 tp0,1; prefill dp0 tp0" in said
    code, _, said = invoke(*entry.command.split(), "--from", str(TRACE), "--rank", "nonsense")
    assert (code, "is neither a role" in said) == (2, True)


@pytest.mark.parametrize("entry", [e for e in PROBES if e.load().selects and e.load().offline], ids=lambda e: e.command)
def test_role_server_and_group_choose_in_every_command_and_say_what_there_is(entry: Entry) -> None:
    words = (*words_of(entry), "--from", str(TRACE))
    for given in (("--role", "decode"), ("--server", "decode"), ("--group", "decode:tp1", "--role", "decode")):
        code, _, said = invoke(*words, *given)
        assert code in (0, 1, 3, 4), said
    for option, there in (("--role", "decode; prefill"), ("--server", "decode@"), ("--group", "decode dp0 tp0,1")):
        code, text, said = invoke(*words, option, "router" if option != "--group" else "decode:tp7")
        assert (code, text) == (2, "")
        assert f"no {option[2:]} matches" in said
        assert there in said


def test_a_rank_is_chosen_by_its_label_as_every_command_prints_it() -> None:
    unknown = identity(tp=-1, service="tcp://10.0.0.7:7000")
    ranks = tuple(FoundRank(one, "live") for one in (identity(tp=0), identity(tp=1), unknown))
    for rank in ranks:
        assert choose(Found(ranks), Selection((rank.identity.label,)))[0].ranks == (rank,)
        assert choose(Found(ranks), Selection((rank.identity.selector,)))[0].ranks == (rank,)


@pytest.mark.parametrize("entry", [e for e in PROBES if e.load().offline], ids=lambda entry: entry.command)
def test_a_directory_without_recordings_gives_no_hint_for_live_ranks(entry: Entry, tmp_path: Path) -> None:
    code, text, said = invoke(*words_of(entry), "--from", str(tmp_path))
    assert (code, text) == (4, "")
    assert "has no recordings" in said
    assert "PDCTL_RUN_DIR" not in said


def test_ranks_are_chosen_by_any_pattern_and_the_others_are_kept() -> None:
    ranks = tuple(FoundRank(identity(role=role, tp=tp), "live") for role in ("prefill", "decode") for tp in (0, 1))
    found, others = choose(Found(ranks), Selection(("decode:tp1", "prefill")))
    assert [rank.identity.label for rank in found.ranks] == [
        "prefill dp0 pp0 tp0",
        "prefill dp0 pp0 tp1",
        "decode dp0 pp0 tp1",
    ]
    assert others == (ranks[2],)
    assert choose(Found(ranks), Selection()) == (Found(ranks), ())
    with pytest.raises(PdctlError):
        choose(Found(ranks), Selection(("decode", "decode:tp9")))


def test_what_is_read_from_outside_in_an_agents_place_is_said_by_every_probe_that_tells_problems() -> None:
    silent = FoundRank(identity(tp=1), "outside", agent_off="nobody listens")
    for entry in PROBES:
        probe: AnyProbe = entry.load()
        if not entry.stage or probe.name == "leaks":
            continue
        with Client(timeout_s=0.05, rank_timeout_s=0.05) as client:
            document = look(probe, View(Found((silent,)), client), probe.in_check(0.001))
        assert "decode dp0 pp0 tp1: read from outside, its agent is silent: nobody listens" in document.problems
        assert document.partial


def test_drawing_ends_when_it_takes_too_long_and_says_so() -> None:
    def said(most_s: float) -> list[str]:
        console = Console(file=io.StringIO(), width=200)
        draw_within(("one", "two"), console, most_s)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert said(1e6) == ["one", "two"]
    assert said(-1) == ["The rest is not drawn: that takes more than -1 s. -o json has all of it."]
