"""A bug report for the engine's own tracker: Markdown that anybody may read. Pure.

It has no host, no request id and no path: they are replaced by hashes. Every text of others stands in a block of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

import pdctl
from pdctl.replay.bisect import BisectDocument
from pdctl.report.escaping import escape, fenced, in_source
from pdctl.report.findings import catalogue
from pdctl.ticket.hide import Hider
from pdctl.ticket.model import Case
from pdctl.ticket.reproduce import Reproduced

MOST_CHARS = 60_000
"""A tracker takes 65,536 characters."""
_WIDTH = 300


def upstream(case: Case, made: Reproduced, bisected: BisectDocument | None, salt: str) -> str:
    """Return the report. case: of a file with a finding; made: of the same file; bisected: answer of ``pdctl bisect``.

    salt: in hexadecimal, for the hashes of names; a secret, else a name that is guessed can be found.
    """
    hosts = (*(one.host for one in case.ranks), *(one.identity.host for one in case.manifest.ranks))
    hider = Hider(
        salt,
        () if case.manifest.redacted else hosts,
        [rid for story in case.stories for rid in story.rids],
    )
    known = (case.check, case.manifest, case.ranks, case.groups, case.stories, case.config, case.unseen, bisected)
    hider.learn(*map(msgspec.to_builtins, known), made.lacking, made.faults)
    parts = list(_parts(case, made, bisected, hider))
    titled = made.test.replace(in_source(made.title), in_source(hider.text(made.title))) if made.title else made.test
    test = _test(replace(made, test=titled))
    room = MOST_CHARS - sum(map(len, parts))
    parts.append(
        test if len(test) <= room else "The test is too long for here: `pdctl replay FILE --emit-test test.py`.\n"
    )
    return "\n".join(parts)


def _parts(case: Case, made: Reproduced, bisected: BisectDocument | None, hider: Hider) -> Iterator[str]:
    worst = case.worst
    code = catalogue().get(worst.code) if worst is not None else None
    versions = ", ".join(case.versions) or "an engine that does not tell its version"
    what = code.title if code is not None else "nothing was found"
    yield f"# [Bug] PD disaggregation: {what} (`{in_source(versions)}`)\n"

    def block(lines: Iterator[str] | tuple[str, ...] | list[str]) -> str:
        return fenced(escape(hider.text(line), most=_WIDTH) for line in lines)

    yield "## What happens\n"
    if worst is not None:
        yield block([worst.summary, *worst.evidence])
    if made.faults:
        yield "**pdctl injected faults.** They acted on these ranks, and what is told here may come of them:\n"
        yield block(made.faults)
    if code is not None:
        yield f"{code.meaning}\n"
        yield f"- Versions: {code.versions or 'not known'}\n- Threads: {code.reference or 'none known'}\n"
    yield "## Environment\n"
    yield block(_environment(case))
    if made.rounds:
        yield "## The ranks' rounds side by side\n"
        yield f"Queue `{made.queue}`. Of each rank: room, own poll, reduced poll, what it did.\n"
        yield block(_rounds(made))
    if made.searched:
        bound, *lines = made.searched
        yield "## Which rule holds\n\nEvery order of events near the recorded one, under the rules of different versions:\n"
        yield block([bound, *lines])
    yield "## On which versions\n"
    if bisected is not None:
        yield block([bisected.verdict, *(f"{one.engine}  {one.outcome}: {one.text}" for one in bisected.engines)])
    else:
        yield "Not tried. `pdctl bisect FILE --engine VERSION…` runs the test below on wheels, without a GPU.\n"
    if made.lacking or case.unseen:
        yield "## What is not known\n"
        yield block([*made.lacking, *case.unseen[:10]])


def _environment(case: Case) -> Iterator[str]:
    yield from case.versions
    shapes = {}
    for one in case.manifest.ranks:
        i = one.identity
        shapes[i.role] = f"{i.role}: tp {i.tp_size}, dp {i.dp_size}, pp {i.pp_size}, cp {i.cp_size}"
    yield from shapes.values()
    for server in case.config.servers if case.config is not None else ():
        backend = server.values.get("disaggregation_transfer_backend", "")
        if backend:
            yield f"{server.role}: transfer backend {backend}"
    yield f"recorded and read by pdctl {pdctl.__version__}"


def _rounds(made: Reproduced) -> Iterator[str]:
    for ordinal, *sides in made.rounds:
        for side in sides:
            first, *rest = side.lines or ("(no request)",)
            yield f"round {ordinal}  {side.rank}  {first}"
            yield from (f"{' ' * len(f'round {ordinal}  {side.rank}')}  {line}" for line in rest)


def _test(made: Reproduced) -> str:
    if not made.test:
        return ""
    fence = "```" if "```" not in made.test else "~~~~~~"
    head = "On SGLang's own queue, buffers and poll functions, a process for each rank. It needs no GPU, no model, no server:"
    how = f"{head} `pytest -s test_ranks.py`."
    shown = f"{fence}python\n{made.test.strip()}\n{fence}"
    return f"## A test\n\n{how}\n\n<details><summary>test_ranks.py</summary>\n\n{shown}\n\n</details>\n"
