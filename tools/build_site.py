"""Builds the site of the documentation into site/: ``make site``. Only its first run, which installs Zensical, needs a network.

The pages are those that GitHub shows. They get one folder, with README.md as the first page. docs/README.md has the
navigation, and is llms.txt. docs/adr/0015-the-site.md says why it is built this way.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tools.pages import CODE, FENCE, LINK, REMOTE, ROOT, pages
from tools.provision import SetupError, cache_root, locked, run, say

PARTS = Path(__file__).parent / "site"
#: Where a file or folder goes that is not where docs/ has it.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
#: Loaded from another host by Zensical's offline search; PARTS has what is put in its place.
SHIM = re.compile(r"https:[^\"\s>]*/iframe-worker/shim\b")
#: What a browser loads by itself from another host.
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?https?:[^\">]*")


def staged(target: Path, root: Path = ROOT) -> str:
    """Return where a file or folder of the repository is in the site's folder; empty where it is not there."""
    name = target.relative_to(root).as_posix()
    if name in MOVED:
        return MOVED[name]
    if not f"{name}/".startswith(("docs/", "deploy/")):
        return ""
    index = "/README.md" if (target / "README.md").exists() else "/index.md"
    return name.removeprefix("docs/") + (index if target.is_dir() else "")


def relinked(page: Path, root: Path = ROOT) -> str:
    """Return the text of a page with its links as the site's folder has them. A link to what is not there becomes its text."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = unquote(found["target"]).partition("#")
        if REMOTE.match(found["target"]) or not path:
            return found[0]
        there = staged((page.parent / path).resolve(), root)
        here = Path(staged(page, root)).parent
        return f"[{found['text']}]({os.path.relpath(there, here)}{mark}{anchor})" if there else found["text"]

    # Words after the language are for the tests that run a block.
    text = re.sub(r"^( *```[a-z]+) .*$", r"\1", page.read_text(), flags=re.MULTILINE)
    text = LINK.sub(link, CODE.sub(keep, FENCE.sub(keep, text)))
    while "\0" in text:  # code in a link's text, or in a block that was kept
        text = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], text)
    return text


def listing(folder: Path) -> str:
    """Return a page that lists the files of a folder: a page by its title, another file by its name."""
    rows = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        label = file.read_text().partition("\n")[0].removeprefix("# ") if file.suffix == ".md" else f"`{name}`"
        rows.append(f"- [{label}]({name})")
    return f"# {folder.relative_to(ROOT)}\n\n" + "\n".join(rows) + "\n"


def navigation(index: Path, root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the navigation, as MkDocs has it, from the sections of the index page.

    A page in a folder that has an index goes below that index. What the index does not name is in a section of its own.
    """
    pages_by_place = {staged(page, root): page for page in pages(root) if staged(page, root)}
    sections: list[dict[str, Any]] = [{"pdctl": "index.md"}]
    named = {"index.md", "pages.md"}
    for part in re.split(r"^## ", index.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        items: list[Any] = []
        for found in re.finditer(LINK.pattern, body):
            place = staged((index.parent / found["target"]).resolve(), root)
            folder, name = os.path.split(place)
            index_of = f"{folder}/" if folder and name in {"README.md", "index.md"} else None
            below = sorted(one for one in pages_by_place if index_of and one.startswith(index_of) and one != place)
            label = found["text"].replace("`", "")
            short = [{Path(one).stem: one} if folder == "findings" else one for one in below]
            items.append({label: [place, *short]} if below else {label: place})
            named |= {place, *below}
        sections.append({title: items})
    rest = sorted(set(pages_by_place) - named)
    return [*sections, {"All pages": "pages.md"}, *([{"More": rest}] if rest else [])]


def llms(index: Path, root: Path = ROOT) -> str:
    """Return llms.txt: the index page, with links to the Markdown beside the site's pages."""
    about = re.search(r"^site_description: (.*)$", (PARTS / "mkdocs.yml").read_text(), re.MULTILINE)
    assert about is not None
    sections = relinked(index, root).partition("## ")[2]
    return f"# pdctl\n\n> {about[1]}.\n\nThe first page is [index.md](index.md).\n\n## {sections}"


def stage(work: Path) -> None:
    """Write the site's folder and the configuration that Zensical takes."""
    shutil.rmtree(work, ignore_errors=True)
    folder = work / "pages"
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    for page in pages():
        if place := staged(page):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(relinked(page))
    for source in (ROOT / "docs" / "adr", ROOT / "deploy", *(ROOT / "deploy").rglob("*/")):
        if source.is_dir() and not (source / "README.md").exists():
            (folder / staged(source)).write_text(listing(source))
    for name in ("extra.css", "worker.js"):
        shutil.copy(PARTS / name, folder)
    index = ROOT / "docs" / "README.md"
    (folder / "llms.txt").write_text(llms(index))
    config = (PARTS / "mkdocs.yml").read_text() + f"nav: {json.dumps(navigation(index), ensure_ascii=False)}\n"
    (work / "mkdocs.yml").write_text(config)


def zensical() -> Path:
    """Return the generator, installed as tools/site/requirements.txt says. Raises SetupError."""
    if sys.version_info < (3, 11):
        raise SetupError("Zensical needs Python 3.11 or newer: make PYTHON=python3.11 site")
    wanted = PARTS / "requirements.txt"
    key = hashlib.sha256(f"{sys.version}{sys.base_prefix}".encode() + wanted.read_bytes()).hexdigest()[:12]
    venv = cache_root() / f"site-{key}"
    with locked(cache_root() / "site.lock"):
        if not (venv / "complete").exists():
            say(f"installing Zensical into {venv}")
            run([sys.executable, "-m", "venv", "--clear", venv])
            run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "-r", wanted])
            (venv / "complete").touch()
    return venv / "bin" / "zensical"


def localized(html: Path) -> None:
    """Make the site whole without a network: its own worker in the place of another host's. Raises SetupError."""
    for page in html.rglob("*.html"):
        worker = os.path.relpath(html / "worker.js", page.parent)
        text = SHIM.sub(worker, page.read_text())
        if found := LOADED.search(re.sub(r"<link\b[^>]*rel=\"?(?:canonical|prev|next)[^>]*>", "", text)):
            raise SetupError(f"{page.relative_to(html)} loads from another host: {found[0]}")
        page.write_text(text)


def main() -> int:
    """Exit status: 0 built, 1 not, with the reason on stderr."""
    work, site = ROOT / "build" / "site", ROOT / "site"
    try:
        program = zensical()
        stage(work)
        run(["env", "-C", work, program, "build", "--strict", "-f", "mkdocs.yml"])
        localized(work / "html")
    except SetupError as error:
        say(str(error))
        return 1
    for source in (work / "pages").rglob("*.md"):  # what llms.txt leads to
        shutil.copy(source, work / "html" / source.relative_to(work / "pages"))
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / "html", site)
    print(f"open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
