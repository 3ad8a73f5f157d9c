"""Nothing but pdctl.report.output writes to standard output and error in a shell's process: no text goes past its encoders."""

from __future__ import annotations

import ast
from pathlib import Path

import pdctl

ROOT = Path(pdctl.__file__).parent
OF_A_SHELL = sorted(
    {
        *ROOT.glob("*.py"),
        *(
            file
            for part in ("commands", "probes", "replay", "inject", "trace", "recording")
            for file in (ROOT / part).rglob("*.py")
        ),
    }
    - {ROOT / "output.py", ROOT / "store_child.py"}  # the way out; a child that speaks to pdctl through its pipe
)
STREAMS = {"stdout", "stderr", "out", "err"}
PRINTERS = {"print", "typer.echo", "typer.secho", "click.echo", "rich.print"}


def writes(tree: ast.AST) -> list[str]:
    """Return the calls in ``tree`` that write past pdctl.report.output."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            *owner, method = name.split(".")
            past = method in ("write", "writelines") and len(owner) > 1 and owner[-1] in STREAMS
            if past or name in PRINTERS:
                found.append(f"{name}, line {node.lineno}")
    return found


def test_there_is_one_way_out() -> None:
    assert {
        str(file.relative_to(ROOT)): found for file in OF_A_SHELL if (found := writes(ast.parse(file.read_text())))
    } == {}


def test_ways_past_it_are_seen() -> None:
    for line in ("print(x)", "sys.stdout.write(x)", "typer.echo(x)", "self._out.out.write(x)", "Output().err.write(x)"):
        assert writes(ast.parse(line)), line
