"""The shape every command's result has, as JSON carries it. ``pdctl schema TAG`` prints the schema of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Document(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="pdctl"):
    """A command's result. A subclass has a tag of its own (``tag="pdctl.ranks"``), which JSON carries as ``schema``.

    version counts incompatible changes of the document's shape.
    """

    version: int = 1


class Rows(NamedTuple):
    """The parts of a document that jsonl and csv have a line for. kind: their type; its fields are the columns of csv."""

    kind: type[msgspec.Struct]
    rows: Sequence[msgspec.Struct]
