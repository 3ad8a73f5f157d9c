"""``pdctl schema``: the JSON Schema of each document that a command writes, and of the files of a drill."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.commands.schema_kinds import load_kinds, load_schema
from pdctl.protocol.errors import Exit
from pdctl.report.output import Output

EXAMPLES = ("pdctl schema", "pdctl schema ranks")


def command(
    name: Annotated[
        Optional[str],  # noqa: UP045  # typer evaluates annotations
        typer.Argument(
            metavar="NAME",
            autocompletion=values("schema"),
            help="Name of the schema: pdctl.ranks. Without it: a list of all schemas.",
        ),
    ] = None,
) -> int:
    """Print the JSON Schema (2020-12) of a document.

    Exit code: 0, or 2 for an unknown name.
    """
    import json

    if name is None:
        kinds = load_kinds()
        width = max(map(len, kinds))
        Output().lines("\n".join(f"{known:{width}}  {about}" for known, (_, about) in kinds.items()))
    else:
        Output().lines(json.dumps(load_schema(name), indent=2))
    return Exit.CLEAN
