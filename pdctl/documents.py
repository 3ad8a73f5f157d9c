"""What commands write as JSON: every document says which schema it follows. docs/schemas/ holds the schemas."""

from __future__ import annotations

import msgspec


class Document(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="pdctl"):
    """A command's result. A subclass has a tag of its own (``tag="pdctl.ranks"``), which JSON carries as ``schema``.

    version counts incompatible changes of the document's shape.
    """

    version: int = 1


DOCUMENTS: dict[str, str] = {
    "pdctl.ranks": "pdctl.probes.ranks.judge:RanksDocument",
}
"""Tag of each document and where its class is; ``python -m tools.gen_schemas`` writes a schema for each."""
