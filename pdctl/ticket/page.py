"""A report as one HTML page: no script, no network, readable on paper, on a phone and in the dark. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from pdctl import __version__
from pdctl.probes.queues.model import WELL, GroupReport
from pdctl.probes.story.model import RoomStory
from pdctl.protocol.durations import seconds
from pdctl.replay.heat import STATES
from pdctl.report.escaping import markup as m
from pdctl.report.findings import Finding, catalogue
from pdctl.report.output import sentence
from pdctl.ticket.model import Case
from pdctl.ticket.pictures import MARKS, heat_map, name_of, way
from pdctl.ticket.style import STYLE

MOST = 50
"""Findings, groups, lines of what was not seen, and ranks of a table that a page has."""
MOST_ENTRIES = 60
"""Lines of a story: the first two thirds, and the last third."""
MOST_EVIDENCE = 20


def page(case: Case) -> str:
    """Return the page."""
    title = f"pdctl: {case.worst.code if case.worst else case.verdict[0]}, {case.name}"
    sections = [
        ("Findings", list(_findings(case))),
        ("Groups and rounds", list(_groups(case))),
        ("What happened to the requests", [part for story in case.stories for part in _story(story)]),
        ("Where the ranks were", list(_stacks(case))),
        ("What was looked at", list(_stages(case))),
        ("Settings", list(_settings(case))),
        ("Ranks", list(_ranks(case))),
        ("What was not seen", list(_unseen(case))),
    ]
    there = [(name, parts) for name, parts in sections if parts]
    links = "".join(f'<a href="#{_anchor(name)}">{m(name)}</a>' for name, _ in there)
    body = "".join(
        f'<section><h2 id="{_anchor(name)}">{m(name)}</h2>{"".join(parts)}</section>' for name, parts in there
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{m(title)}</title><style>{STYLE}</style></head><body>"
        f"{_head(case)}<nav>{links}</nav><main>{body}</main>"
        f"<footer>Made by pdctl {m(__version__)} from {m(case.name)}. pdctl explain PDnnn says more of a finding.</footer>"
        "</body></html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _head(case: Case) -> str:
    level, words = case.verdict
    made = case.manifest
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(made.started_wall_ns // 10**9, 253402300799)))
    names = "names hashed" if made.redacted else "names as they are"
    of = "asked while they ran" if case.live else "judged by recordings"
    many = f"{len(case.ranks)} rank{'s'[: len(case.ranks) != 1]}, {of}"
    facts = [f"made {at}", many, ", ".join(case.versions[:4]), names, f"pdctl {made.pdctl_version}"]
    lines = [f'<p class="facts">{" · ".join(m(fact) for fact in facts if fact)}</p>']
    lines.append(f'<div class="verdict {level}"><h1>{m(words)}</h1>')
    worst = case.worst
    if worst is not None:
        lines.append(f"<p><b>{m(worst.code)}</b> {m(worst.summary)}</p>")
        if worst.next_step:
            lines.append(f'<p class="next"><b>Next</b> {m(sentence(worst.next_step))}</p>')
    others = len([one for one in case.findings if not one.follows]) - (worst is not None)
    if others > 0:
        lines.append(f'<p class="more">{others} more finding{"s"[: others != 1]} below.</p>')
    if case.unseen:
        lines.append('<p class="more"><a href="#what-was-not-seen">Not all could be seen.</a></p>')
    return f"<header>{''.join(lines)}</div></header>"


def _findings(case: Case) -> Iterator[str]:
    for one in case.findings[:MOST]:
        yield _finding(one)
    yield from _left(len(case.findings) - MOST, "findings")


def _finding(one: Finding) -> str:
    known = catalogue().get(one.code)
    title = one.cause or (known.title if known else "")
    level = one.level.value
    parts = [f'<article class="finding {level}"><h3><span class="tag {level}">{level}</span> {m(one.code)}']
    parts.append(f" {m(title)}</h3><p>{m(one.summary)}</p>")
    if one.follows:
        parts.append(f'<p class="more">It follows from {m(one.follows)}.</p>')
    if one.evidence:
        lines = "".join(f"<li>{m(line)}</li>" for line in one.evidence[:MOST_EVIDENCE])
        parts.append(f"<ul>{lines}</ul>{''.join(_left(len(one.evidence) - MOST_EVIDENCE, 'lines'))}")
    rows = [("Next", sentence(one.next_step)), ("Means", known.meaning if known else ""), ("Versions", one.versions)]
    rows += [("Known from", known.reference if known else ""), ("Group", one.group)]
    rows += [("Rooms", _some(one.rooms)), ("Ranks", _some(one.ranks))]
    parts.append("".join(f"<dt>{name}</dt><dd>{m(text)}</dd>" for name, text in rows if text).join(("<dl>", "</dl>")))
    return "".join([*parts, "</article>"])


def _some(values: Sequence[object], most: int = 12) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(str(one) for one in values[:most]) + more


def _left(many: int, what: str) -> Iterator[str]:
    if many > 0:
        yield f'<p class="more">{many} more {what} are not shown.</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    top = "".join(f"<th>{m(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{m(one)}</td>' for one in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _groups(case: Case) -> Iterator[str]:
    groups = sorted(case.groups, key=lambda one: one.verdict in WELL)
    rows = [(one.title, one.verdict, one.said or _where(one)) for one in groups[:MOST]]
    if rows:
        yield _table(("group", "verdict", "what was seen"), rows)
        yield from _left(len(groups) - MOST, "groups")
    for heat in case.heats:
        where = f"the ranks part at round {heat.parted}" if heat.parted >= 0 else "in step"
        yield f"<figure><figcaption><b>{m(heat.title)}</b> · {m(heat.queue)}: {where}</figcaption>"
        yield f'<div class="scroll end">{heat_map(heat)}</div></figure>'
    if case.heats:
        used = [state for state in STATES if any(c.state == state for h in case.heats for row in h.cells for c in row)]
        marks = "".join(
            f'<span><i class="{name_of(state)}">{MARKS.get(state, "")}</i>{m(state)}</span>' for state in used
        )
        said = "A column is a round, a row the ranks that did the same; in a cell the requests polled, and → how many stayed."
        yield f'<p class="legend">{marks}</p><p class="more">{said}</p>'
    yield from _left(case.more_heats, "queues of groups")


def _where(group: GroupReport) -> str:
    return f"since round {group.round} of {group.queue}" if group.round >= 0 else "; ".join(group.notes[:1])


def _story(story: RoomStory) -> Iterator[str]:
    rids = f" · {_some(story.rids, 3)}" if story.rids else ""
    yield f"<article><h3>Room {story.room}{m(rids)}</h3>"
    yield f'<p class="facts">from {m(story.started)}, for {m(seconds(story.span_s))}</p>'
    yield f'<div class="scroll">{way(story)}</div>'
    first, last = MOST_ENTRIES * 2 // 3, MOST_ENTRIES // 3
    entries = story.entries if len(story.entries) <= MOST_ENTRIES else story.entries[:first]
    rows = [(f"{one.t_s:.3f}", one.rank, one.text) for one in entries]
    if len(story.entries) > MOST_ENTRIES:
        rows.append(("…", "", f"{len(story.entries) - first - last} lines are not shown"))
        rows += [(f"{one.t_s:.3f}", one.rank, one.text) for one in story.entries[-last:]]
    yield _table(("s", "rank", "what happened"), rows, "story")
    lines = [*story.notes, *story.gaps][:MOST_EVIDENCE]
    if lines:
        yield f"<ul>{''.join(f'<li>{m(line)}</li>' for line in lines)}</ul>"
    yield "</article>"


def _stacks(case: Case) -> Iterator[str]:
    if case.stacks is None:
        return
    rows = [
        (group.title, one.ranks, one.where, one.moves, "elsewhere" if one.outlier else "")
        for group in case.stacks.groups
        for one in group.places
    ]
    if rows:
        yield _table(("group", "ranks", "main thread", "moves", ""), rows[:MOST])
        yield from _left(len(rows) - MOST, "lines")


def _stages(case: Case) -> Iterator[str]:
    if case.check.stages:
        rows = [(one.stage, one.level, one.summary, _some(one.codes)) for one in case.check.stages[:MOST]]
        yield _table(("stage", "level", "what was seen", "findings"), rows)


def _settings(case: Case) -> Iterator[str]:
    if case.config is None:
        return
    servers = [one.server for one in case.config.servers][:8]
    apart = [one for one in case.config.settings if one.verdict in ("mismatch", "ranks differ", "differs")]
    if not apart:
        yield f"<p>{len(case.config.settings)} settings of {len(case.config.servers)} servers; none differs.</p>"
        return
    rows = [(one.name, one.verdict, *(one.servers.get(name, "") for name in servers)) for one in apart[:MOST]]
    yield _table(("setting", "verdict", *servers), rows)
    yield from _left(len(apart) - MOST, "settings")


def _ranks(case: Case) -> Iterator[str]:
    kept = {(one.rank, one.identity.pid): one.kept for one in case.manifest.ranks}
    rows = [
        (one.rank, one.state, kept.get((one.rank, one.pid), "none"), one.host, one.pid or "", one.where or one.reason)
        for one in case.ranks[:MOST]
    ]
    if rows:
        yield _table(("rank", "state", "recording", "host", "pid", "main thread"), rows)
        yield from _left(len(case.ranks) - MOST, "ranks")


def _unseen(case: Case) -> Iterator[str]:
    if case.unseen:
        yield f"<ul>{''.join(f'<li>{m(line)}</li>' for line in case.unseen[:MOST])}</ul>"
        yield from _left(len(case.unseen) - MOST, "lines")
