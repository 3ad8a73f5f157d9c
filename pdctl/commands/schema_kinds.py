"""All documents that commands write, found by their tags, and their JSON Schemas."""

from __future__ import annotations

from typing import Any

from pdctl.commands.usage import did_you_mean
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import FINDING

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def load_schema(name: str) -> dict[str, Any]:
    """Return the schema that ``name`` names (``ranks`` is pdctl.ranks). Raises PdctlError (USAGE) with the nearest."""
    import msgspec

    kinds = load_kinds()
    full = name if name in kinds else f"pdctl.{name}"
    if full not in kinds:
        hint = did_you_mean(name.removeprefix("pdctl."), (known.removeprefix("pdctl.") for known in kinds))
        raise PdctlError(f"there is no schema {name!r}", f"{hint}pdctl schema lists all names.", Exit.USAGE)
    return {"$schema": DIALECT, "title": full, **msgspec.json.schema(kinds[full][0])}


def load_kinds() -> dict[str, tuple[Any, str]]:
    """Return name → (type, what it is) of every document, of a drill file and of a line of a drill's journal.

    Imports the modules that define a document and no others: beside them are some that load torch.
    """
    from importlib import import_module
    from pathlib import Path

    import pdctl
    from pdctl.inject.drill.records import Record
    from pdctl.inject.drill.schema import Drill
    from pdctl.protocol.documents import Document
    from pdctl.report.findings import Finding

    root = Path(pdctl.__file__).parent
    for file in root.rglob("*.py"):
        if 'tag="pdctl.' in file.read_text(encoding="utf-8"):
            import_module(".".join((root.name, *file.relative_to(root).with_suffix("").parts)))
    kinds: dict[str, tuple[Any, str]] = {
        str(kind.__struct_config__.tag): (kind, _first_sentence(kind.__doc__ or ""))
        for kind in Document.__subclasses__()
        if kind.__module__.startswith("pdctl.")
    }
    kinds[FINDING] = Finding, "A finding, as a line of jsonl has it, which also names the schema it is `of`."
    kinds["pdctl.drill.file"] = Drill, "A drill, as people write it."
    kinds["pdctl.drill.journal"] = Record, "A line of a drill's journal."
    return dict(sorted(kinds.items()))


def _first_sentence(text: str) -> str:
    first = text.partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{first.replace('``', '`')}."
