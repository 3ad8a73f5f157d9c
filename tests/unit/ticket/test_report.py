"""A report: what is wrong first, nothing of what others wrote is markup, and it stays small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from pdctl.probes.check.model import CheckDocument, StageRow
from pdctl.probes.queues.model import GroupReport
from pdctl.probes.ranks.judge import RankRow
from pdctl.probes.story.model import Entry, RoomStory, Stay
from pdctl.protocol.errors import PdctlError
from pdctl.replay.heat import PARTS, STEP, Cell, Heat
from pdctl.report.findings import Finding, Level, finding
from pdctl.ticket.brief import MOST_LINES, brief
from pdctl.ticket.gather import gather
from pdctl.ticket.model import Case
from pdctl.ticket.page import page
from pdctl.ticket.pictures import folded, heat_map
from pdctl.trace.manifest import Collector, TraceRank, new
from pdctl.trace.writer import write_trace
from tests.support.identities import identity

C1 = Path(__file__).resolve().parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
EVIL = (
    "</style></svg><script>alert(1)</script><img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>&lt;b&gt;",
    "```\n# title\n[x](javascript:alert(1)) @everyone <http://evil.example> ![i](http://evil.example/i.png)\n```",
    "\x1b[2J\u202e\ud800]]>-->",
)


class _Tags(HTMLParser):
    """What a page has of markup."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "line"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> _Tags:
    tags = _Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def case(**fields: object) -> Case:
    check = CheckDocument(level="ok", failed=False, stages=(StageRow("ranks", "ok", "2 ranks"),))
    return Case(**{"name": "t.zip", "manifest": new("took"), "check": check, "live": True, **fields})  # type: ignore[arg-type]


def evil(text: str) -> Case:
    found = Finding(
        code=text, level=Level.ERROR, summary=text, group=text, rooms=(7,), ranks=(text,), evidence=(text,), cause=text,
        versions=text, next_step=text, follows="",
    )  # fmt: skip
    check = CheckDocument(level=text, failed=True, stages=(StageRow(text, text, text, (text,)),), findings=(found,))
    heat = Heat(text, text, (text, "tp1"), (1,), ((Cell(STEP, 1),), (Cell(PARTS, 2, 1),)), 1)
    entry = Entry(room=7, t_s=0.0, time=text, rank=text, kind=text, text=text)
    story = RoomStory(
        room=7, rids=(text,), started=text, span_s=1.0, entries=(entry,), stays=(Stay(text, text, 0.0, None, text),),
        ranks=(), gaps=(text,), notes=(text,),
    )  # fmt: skip
    who = RankRow(
        rank=text, state=text, reason=text, role=text, dp=0, pp=0, cp=0, tp=0, host=text, pid=1, engine=text,
        engine_version=text, pdctl_version=text, cluster=text, service=text, instance=text, started_wall_ns=0,
        where=text,
    )  # fmt: skip
    rank = TraceRank(rank=text, state=text, kept=text, identity=msgspec.structs.replace(identity(), host=text))
    row = Collector(name=text, command=text, status=text, reason=text)
    return case(
        name=text,
        manifest=msgspec.structs.replace(new(text), ranks=(rank,), collectors=(row,)),
        check=check,
        ranks=(who,),
        groups=(GroupReport(title=text, ranks=(text,), verdict=text, said=text),),
        heats=(heat,),
        stories=(story,),
        unseen=(text,),
    )


@pytest.mark.parametrize("text", EVIL)
def test_nothing_that_others_wrote_is_markup(text: str) -> None:
    plain, tags = parsed(page(evil("x"))), parsed(page(evil(text)))
    assert tags.seen == plain.seen
    assert {name for name, _ in tags.attributes} == {name for name, _ in plain.attributes}
    assert not [value for name, value in tags.attributes if name in ("href", "src") and not value.startswith("#")]
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800-\udfff]", page(evil(text)))


@pytest.mark.parametrize("text", EVIL)
def test_markdown_has_the_words_of_others_in_one_block_that_they_can_not_end(text: str) -> None:
    lines = brief(evil(text)).splitlines()
    fence = re.fullmatch("(`+)text", lines[2])
    assert fence is not None
    assert lines[-1] == fence[1]
    assert all(fence[1] not in line for line in lines[3:-1])
    assert lines[0].startswith("**pdctl: error")
    assert "evil" not in lines[0]


def test_it_needs_no_network_and_no_script() -> None:
    text = page(evil("x"))
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_recorded_hang_is_told_from_its_trace_alone() -> None:
    found = gather(C1, timeout_s=60)
    assert found.worst is not None
    assert found.worst.code == "PD101"
    assert found.verdict == ("error", "Something is wrong.")
    assert (found.heats[0].queue, found.heats[0].parted) == ("decode.transfer", 247)
    assert [story.room for story in found.stories] == list(found.worst.rooms)
    text = parsed(page(found)).text
    assert text.index("Something is wrong.") < text.index("metadata landed on one rank")
    assert "the ranks part at round 247" in text
    assert "recordings do not tell of: " in text
    told = brief(found).splitlines()
    assert len(told) <= MOST_LINES
    assert told[0] == "**pdctl: error PD101.** Something is wrong."
    assert any("DIVERGED" in line for line in told)


def test_a_bundle_without_recordings_is_told_by_what_its_commands_said(tmp_path: Path) -> None:
    check = CheckDocument(level="error", failed=True, stages=(), findings=(finding("PD113", "it has ended"),))
    row = Collector(name="check", command="pdctl check", status="kept", member="documents/check.json")
    lost = Collector(name="trace", command="pdctl record", status="missing", reason="no rank has a recording")
    made = msgspec.structs.replace(new("took"), collectors=(row, lost))
    file = tmp_path / "b.zip"
    write_trace(file, [], made, documents={row.member: msgspec.json.encode(check)})
    found = gather(file, timeout_s=60)
    assert found.live
    assert found.worst is not None
    assert found.worst.code == "PD113"
    assert "trace: missing: no rank has a recording" in parsed(page(found)).text
    write_trace(file, [], made, documents={row.member: b'{"schema":"pdctl.check","level":7}'}, force=True)
    with pytest.raises(PdctlError, match="has no recordings"):
        gather(file, timeout_s=60)


def test_nothing_found_is_not_well_where_not_all_was_seen() -> None:
    check = CheckDocument(level="ok", failed=False, stages=())
    assert case(check=check).verdict == ("ok", "Nothing was found.")
    assert case(check=msgspec.structs.replace(check, partial=True)).verdict[0] == "unknown"
    rank = TraceRank(rank="decode dp0 pp0 tp0", state="live", kept="missing", identity=identity())
    some = msgspec.structs.replace(new("took"), ranks=(rank,))
    assert case(check=check, manifest=some).verdict[0] == "unknown"
    info = msgspec.structs.replace(check, findings=(finding("PD101", "x", level=Level.INFO),))
    assert case(check=info).worst is None


def test_a_consequence_comes_after_its_cause() -> None:
    cause = finding("PD101", "the cause")
    after = msgspec.structs.replace(finding("PD110", "what follows"), follows="PD101", level=Level.ERROR)
    check = CheckDocument(level="error", failed=True, stages=(), findings=(after, cause))
    assert case(check=check).worst is cause


def test_ranks_that_are_alike_share_a_row_and_thousands_fit_on_a_page() -> None:
    rounds = tuple(range(31))
    same = tuple(Cell(STEP, 3) for _ in rounds)
    other = (*same[:-1], Cell(PARTS, 3, 2))
    ranks = tuple(f"tp{n}" for n in range(2_000))
    heat = Heat("decode", "decode.transfer", ranks, rounds, (*(same for _ in ranks[1:]), other), 30)
    assert [name for name, _ in folded(heat)] == ["tp0–1998", "tp1999"]
    apart = tuple((*same[:-1], Cell(STEP, 3, n)) for n in range(2_000))
    heat = Heat("decode", "decode.transfer", ranks, rounds, apart, -1)
    assert folded(heat)[-1][0] == "1977 more ranks"
    assert len(heat_map(heat)) < 200_000
    many = tuple(finding("PD101", "x" * 5_000, evidence=("y" * 5_000,) * 100) for _ in range(3_000))
    check = CheckDocument(level="error", failed=True, stages=(), findings=many, problems=("z" * 5_000,) * 9)
    whole = page(case(check=check, heats=(heat,) * 16, unseen=tuple(str(n) for n in range(100_000))))
    assert len(whole) < 6_000_000
    assert "2950 more findings are not shown." in whole
    assert len(brief(case(check=check, unseen=("z",) * 10_000)).splitlines()) <= MOST_LINES
