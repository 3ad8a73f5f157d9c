"""Man pages from docs/commands.md, written while a wheel is built: a page for ``pdctl`` and one for each command.

Hatchling runs :class:`ManPages`; nothing is kept in the tree. ``python -m tools.man_pages DIR`` writes them to look at.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only a build needs it
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^#{1,3} `(pdctl[^`]*)`$", re.MULTILINE)
LABEL = re.compile(r"\*\*(\w+)\*\*:$")
ITEM = re.compile(r"\* `([^`]+)`(?:: (.*))?$")
#: A row of the README's table of exit codes.
EXIT = re.compile(r"^\| (\d[\d, ]*) \| (.+) \|$", re.MULTILINE)


def quoted(text: str) -> str:
    """Return text as roff takes it literally, as one line."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", "").replace("^", r"\(ha")
    ascii_only = "".join(one if one.isascii() else rf"\[u{ord(one):04X}]" for one in plain)
    return rf"\&{ascii_only}" if plain.startswith(".") else ascii_only


def body(markdown: str) -> str:
    """Return the roff of what stands below a heading of the reference: paragraphs, labels, items and code."""
    lines, code = [], False
    for line in markdown.strip().splitlines():
        if line.startswith("```"):
            code = not code
            lines.append(".nf" if code else ".fi")
        elif code:
            lines.append(quoted(line.removeprefix("$ ")))
        elif label := LABEL.match(line):
            lines.append(f".SS {label[1]}")
        elif item := ITEM.match(line):
            lines += [".TP", rf"\fB{quoted(item[1])}\fR", quoted(item[2] or "")]
        else:
            lines.append(quoted(line) if line else ".PP")
    # A label, an item and a code block begin a paragraph of their own.
    text = "\n".join(lines)
    return re.sub(r"(?:^\.PP\n)+(?=\.SS|\.TP|\.PP)", "", text, flags=re.MULTILINE) + "\n"


def exit_status(readme: str) -> str:
    """Return the roff of the exit codes, as the README has them."""
    plain = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", readme)
    return "".join(f".TP\n{codes}\n{quoted(meaning)}\n" for codes, meaning in EXIT.findall(plain))


def man_pages(reference: str, readme: str, version: str) -> dict[str, str]:
    """Return file name → roff of each page. A group's subcommands are sections of its page."""
    parts = HEADING.split(reference)[1:]
    found: dict[str, str] = {}
    for title, markdown in zip(parts[::2], parts[1::2], strict=True):
        words = title.split()
        name = "-".join(words[:2])
        summary = markdown.strip().partition("\n\n")[0].replace("\n", " ").rstrip(".")
        if len(words) < 3:
            head = f'.TH "{quoted(name.upper())}" "1" "" "pdctl {version}" "pdctl"\n.nh\n.ad l\n'
            found[name] = f"{head}.SH NAME\n{quoted(name)} \\- {quoted(summary)}\n.SH DESCRIPTION\n"
        else:
            found[name] += f'.SH "{quoted(title).upper()}"\n'
        found[name] += body(markdown)
    others = ", ".join(rf"\fB{quoted(name)}\fR(1)" for name in found if name != "pdctl")
    found["pdctl"] += f".SH EXIT STATUS\n{exit_status(readme)}.SH SEE ALSO\n{others}\n"
    return {f"{name}.1": text for name, text in found.items()}


def write(folder: Path, version: str) -> None:
    """Write all pages into a folder that is there."""
    reference, readme = (ROOT / "docs" / "commands.md").read_text(), (ROOT / "README.md").read_text()
    for name, text in man_pages(reference, readme, version).items():
        (folder / name).write_text(text)


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the pages into share/man/man1 of the environment that a wheel is installed into."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Write them where the build takes them from; they go with :meth:`finalize`."""
        self.folder = tempfile.TemporaryDirectory()
        write(Path(self.folder.name), self.metadata.version)
        build_data["shared_data"][self.folder.name] = "share/man/man1"

    def finalize(self, *_: Any) -> None:
        """Remove them."""
        self.folder.cleanup()


if __name__ == "__main__":
    write(Path(sys.argv[1]), "")
