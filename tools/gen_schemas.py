"""Catches a document whose shape changed and whose version did not.

tools/schemas.txt has a line a document: name, version, hash of its JSON Schema without the descriptions.
``python -m tools.gen_schemas`` writes it; with ``--check`` it writes nothing and fails when a line is stale.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pdctl.commands.schema_kinds import load_kinds, load_schema

FILE = Path(__file__).with_name("schemas.txt")


def line(schema: dict[str, Any]) -> str:
    """Return the line of one schema. A type without a version has ``-``."""
    root = schema.get("$ref") or schema["anyOf"][0]["$ref"]
    version = schema["$defs"][root.rpartition("/")[2]]["properties"].get("version", {}).get("default", "-")
    shape = json.dumps(_without_descriptions(schema), sort_keys=True)
    return f"{schema['title']} {version} {hashlib.sha256(shape.encode()).hexdigest()[:16]}"


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_descriptions(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: one for name, one in value.items() if name != "description" or not isinstance(one, str)}
    return {name: _without_descriptions(one) for name, one in kept.items()}


def main(arguments: list[str]) -> int:
    """Exit status: 0 in step or written, 1 not in step."""
    expected = [line(load_schema(name)) for name in load_kinds()]
    if "--check" not in arguments:
        FILE.write_text("\n".join(expected) + "\n")
        return 0
    there = FILE.read_text().splitlines()
    stale = sorted({one.split()[0] for one in set(there) ^ set(expected)})
    for name in stale:
        print(
            f"{name} has another shape now: raise its version if a reader of the old shape fails, then run `make docs`",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
