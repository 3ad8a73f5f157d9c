"""Keeps the published JSON Schemas in step with the documents that commands write.

``python -m tools.gen_schemas`` writes docs/schemas/*.json; with ``--check`` it writes nothing and fails when one is
stale.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from pdctl.documents import DOCUMENTS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"


def schemas() -> dict[str, str]:
    """Return file name → text of every schema."""
    found = {}
    for tag, place in DOCUMENTS.items():
        module, _, name = place.partition(":")
        schema = msgspec.json.schema(getattr(import_module(module), name))
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": tag, **schema}
        found[f"{tag}.json"] = json.dumps(schema, indent=2, sort_keys=False) + "\n"
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
