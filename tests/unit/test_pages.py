"""What is made of the pages: their links lead somewhere, and each command has its man page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pdctl.faults.table import FaultTable
from tools.man_pages import HEADING, man_pages
from tools.pages import ROOT, Link, complaint, links, pages, slug

REFERENCE = (ROOT / "docs" / "commands.md").read_text()
_PARTS = HEADING.split(REFERENCE)[1:]
OPTIONS = {
    name: set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"^\* `(-[^`]+)`", told, re.MULTILINE))))
    for name, told in zip(_PARTS[::2], _PARTS[1::2], strict=True)
}
"""The options of each command, by its name."""
NOT_TYPED = ("CHANGELOG.md", "commands.md")
"""Pages that have lines of older versions, or whose lines are run."""


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("`/livez`", "livez"),
        ("5. What it costs, and when", "5-what-it-costs-and-when"),
        ("A & B", "a--b"),
        ("[A page](page.md#x) of words", "a-page-of-words"),
        ("snake_case stays", "snake_case-stays"),
    ],
)
def test_an_anchor_is_what_github_makes_of_a_heading(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_a_link_that_leads_nowhere_is_named_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "a.md"
    page.parent.mkdir()
    page.write_text(
        "# A\n\n## Here\n\n[one](#here) [two](#there)\n\n```\n[code](none.md)\n## Not a heading\n```\n\n`[code](none.md)`\n"
        "[three](b.md) [four](https://example.org/none) [five](#not-a-heading)\n[six](../../x) ![seven](none.png)\n"
        "[eight](../docs)\n\n## Twice\n\n## Twice\n\n[nine](#twice)\n"
    )
    wrong = [text for link in links(page) if (text := complaint(link, tmp_path))]
    assert [text.partition(": ")[0::2] for text in wrong] == [
        ("docs/a.md:5", "#there: no heading of its own has this anchor"),
        ("docs/a.md:13", "b.md: no such file"),
        ("docs/a.md:13", "#not-a-heading: no heading of its own has this anchor"),
        ("docs/a.md:14", "../../x: outside the repository"),
        ("docs/a.md:14", "none.png: no such file"),
        ("docs/a.md:21", "#twice: no heading of its own has this anchor"),
    ]


def test_an_anchor_of_a_folder_leads_nowhere() -> None:
    assert "no heading" in complaint(Link(ROOT / "README.md", 1, "docs#x"))
    assert not complaint(Link(ROOT / "README.md", 1, "docs"))


def test_the_readme_fits_a_narrow_terminal_and_its_sample_is_what_is_printed_there() -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^(?:> )?```$.*?^(?:> )?```$", readme, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []
    assert [line for line in readme.splitlines() if len(line) > 100] == []
    assert f"$ pdctl diff-queues --from docs/notebooks/s1.pdtrace\n{narrow_sample()}```\n" in readme


def narrow_sample() -> str:
    """Return what ``diff-queues`` prints of the recorded hang on 80 columns."""
    printed = (ROOT / "tests/golden/files/offline/diff-queues-s1.txt").read_text()
    return printed.partition("--- stdout\n")[2].partition("\n$ ")[0]


def test_the_samples_of_the_first_minutes_are_wrapped_as_on_a_narrow_terminal() -> None:
    start = (ROOT / "docs/start.md").read_text()
    samples = "".join(re.findall(r"^```$.*?^```$", start, re.MULTILINE | re.DOTALL))
    assert [line for line in samples.splitlines() if len(line) > 80] == []
    page, printed = (re.sub(r"[0-9][0-9.]*", "#", text) for text in (samples, narrow_sample()))
    for first, last in (("PD#  ", "newer.\n"), ("        tp# committed", "later)\n")):
        part = first + printed.partition(first)[2].partition(last)[0] + last
        assert part.count("\n") > 2
        assert part in page


def misplaced(line: str) -> Iterator[str]:
    """Yield the options in a command line that are not where their command takes them."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a sentence with an apostrophe
        words = line.split()
    command = "pdctl"
    for word in words[1:]:
        if word in ("--", "|", ">", "&", "&&"):
            return
        if f"{command} {word}" in OPTIONS:
            command += f" {word}"
        elif re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word) and word.partition("=")[0] not in OPTIONS[command]:
            yield f"{command}: {word}"


def test_an_option_that_its_command_does_not_take_is_misplaced() -> None:
    assert list(misplaced("pdctl --hosts a --run-dir b ranks --rank=c -o json # -x")) == ["pdctl: --run-dir"]
    assert list(misplaced("pdctl lab up --depth 2 -- --x")) == ["pdctl lab up: --depth"]


def test_command_lines_of_pages_have_options_where_their_commands_take_them() -> None:
    typed = re.compile(r"^[> ]*(?:\$ )?(pdctl .*)|`(pdctl [^`\n]+)`", re.MULTILINE)
    lines = [
        (page, "".join(found))
        for page in pages()
        if page.name not in NOT_TYPED
        for found in typed.findall(page.read_text())
    ]
    assert len(lines) > 300
    assert [(page.name, wrong) for page, line in lines for wrong in misplaced(line)] == []


def test_what_a_contributor_types_and_calls_is_there() -> None:
    """Paths are held in tests/system/test_contributing.py."""
    text = "\n".join(page.read_text() for page in pages() if page.name != "CHANGELOG.md")
    targets = set(re.findall(r"(?:`|^(?:\$ )?)make (?:[A-Z_]+=\S+ )*([a-z][a-z-]*)", text, re.MULTILINE))
    assert len(targets) > 10
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    modules = set(re.findall(r"python3? -m ((?:benchmarks|tests|tools)(?:\.\w+)*)", text))
    assert len(modules) > 10
    assert [name for name in sorted(modules) if find_spec(name) is None] == []
    calls = set(re.findall(r"`table\.(\w+)\(", text))
    assert {"decide", "offer"} <= calls <= set(dir(FaultTable))


def test_each_command_has_a_man_page_with_its_options() -> None:
    pages = man_pages(REFERENCE, (ROOT / "README.md").read_text(), "1.2.3")
    commands = {title.split()[1] for title in HEADING.findall(REFERENCE) if " " in title}
    assert set(pages) == {"pdctl.1", *(f"pdctl-{command}.1" for command in commands)}
    for name, page in pages.items():
        assert page.startswith(f'.TH "{name[:-2].upper()}" "1" "" "pdctl 1.2.3"'.replace("-", r"\-")), name
        assert page.isascii()
        assert r"\fB\-\-help\fR" in page
    assert ".TP\n124, 130\nout of time" in pages["pdctl.1"]
    assert '.SH "PDCTL DUMP LEAKS"' in pages["pdctl-dump.1"]


def test_text_of_a_page_is_no_request_to_roff() -> None:
    pages = man_pages("# `pdctl`\n\n.so /etc/passwd \\fB^ é\n'br\n", "", "")
    assert "\\&.so /etc/passwd \\efB\\(ha \\[u00E9]\n\\(aqbr\n" in pages["pdctl.1"]
