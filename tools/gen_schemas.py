"""Keeps the published JSON Schemas in step with the documents that commands write.

``python -m tools.gen_schemas`` writes docs/schemas/*.json; with ``--check`` it writes nothing and fails when one is
stale.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import msgspec

import pdctl.commands
import pdctl.explore
import pdctl.probes
import pdctl.replay
import pdctl.trace
from pdctl.inject.drill.records import Record
from pdctl.inject.drill.schema import Drill
from pdctl.protocol.documents import Document

FILES = {"pdctl.drill.file": Drill, "pdctl.drill.journal": Record}
"""What people write and commands append to: a drill file, and a line of a journal."""

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"


def documents() -> list[type[Document]]:
    """Return the class of every document, wherever in commands, probes, replay and traces it is."""
    for package in (pdctl.commands, pdctl.explore, pdctl.probes, pdctl.replay, pdctl.trace):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return sorted(Document.__subclasses__(), key=tag)


def tag(document: type[Document]) -> str:
    """Return what the document's JSON has as its ``schema``."""
    return str(document.__struct_config__.tag)


def schemas() -> dict[str, str]:
    """Return file name → text of every schema."""
    found = {}
    for document in documents():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": tag(document)}
        found[f"{tag(document)}.json"] = json.dumps({**schema, **msgspec.json.schema(document)}, indent=2) + "\n"
    for title, kind in FILES.items():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        found[f"{title}.json"] = json.dumps({**schema, **msgspec.json.schema(kind)}, indent=2) + "\n"
    return found


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    expected = schemas()
    if "--check" not in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in expected.items():
            (FOLDER / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in {*there, *expected} if there.get(name) != expected.get(name))
    for name in stale:
        print(
            f"docs/schemas/{name} is not what the commands write now: run `python -m tools.gen_schemas`",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
