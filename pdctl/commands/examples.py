"""Examples that the help of a command ends with: two command lines, data of the command's module or of its probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Examples = tuple[str, str]
Given = Examples | Mapping[str, Examples]
"""The examples of a command, or those of its subcommands by their names."""


def add(command: Any, examples: Given) -> None:
    """End the help of a Typer command with its examples. A group shows the first one of two of its subcommands."""
    if not isinstance(examples, Mapping):
        text = "\n".join(f"  {line}" for line in examples)
        command.epilog = "\n\n".join(filter(None, (command.epilog, f"\b\nExamples:\n{text}")))
        return
    for name, sub in command.commands.items():
        add(sub, examples[name])
    first, second, *_ = examples.values()
    add(command, (first[0], second[0]))
