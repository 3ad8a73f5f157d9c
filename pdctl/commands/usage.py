"""What is said of wrong usage: one line for what is wrong, one for what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MOST = 3
"""Names that are suggested at most."""


def explain(error: Any) -> tuple[str, str]:
    """Return what is wrong with a command line, and the next step. error: a UsageError of Typer, or of click below it."""
    ctx = getattr(error, "ctx", None)
    name = _name(ctx)
    usage = f"{name} --help shows how to use it."
    if ctx is None:
        return _message(error), usage
    option = getattr(error, "option_name", "")
    command = re.search(r"No such command '(.*?)'", str(error.message), re.DOTALL)
    if command and hasattr(ctx.command, "list_commands"):
        hint = _commands(ctx, command[1])
        return f"No such command: {command[1]}", f"{hint}{name} --help lists the commands."
    if option and "No such option" in str(error.message):
        hint = _options(ctx, option)
        return f"No such option: {option}", f"{hint}{name} --help lists the options."
    return _message(error), usage


def did_you_mean(text: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a sentence with those of ``names`` that are written much like ``text``, and a space; "" for none."""
    near = get_close_matches(text, list(names), n=MOST, cutoff=0.6)
    return f"Did you mean {' or '.join(f'{prefix}{one}' for one in near)}? " if near else ""


# ---- commands and options that there are -----------------------------------------------------------------------------


def _name(ctx: Any) -> str:
    """Return the command as people type it: ``pdctl lab up``."""
    names: list[str] = []
    while ctx is not None and ctx.parent is not None:
        names.append(str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(["pdctl", *reversed(names)])


def _commands(ctx: Any, word: str) -> str:
    """Return where the command ``word`` may be: among those of other groups, or of a similar name here."""
    root = ctx.find_root()
    everywhere = [" ".join(path) for path, _ in _walk(root)]
    same = [path for path in everywhere if path.rpartition(" ")[2] == word]
    if same:
        return f"Did you mean {' or '.join(f'pdctl {path}' for path in same[:MOST])}? "
    here = f"{_name(ctx)} "
    return did_you_mean(word, ctx.command.list_commands(ctx), here) or did_you_mean(word, everywhere, "pdctl ")


def _options(ctx: Any, option: str) -> str:
    """Return where ``option`` belongs: before the command, to another command; and similar ones here."""
    root = ctx.find_root()
    first = next((one for one in root.command.params if option in one.opts), None)
    if first is not None and ctx is not root:
        value = f" {first.metavar}" if first.metavar else ""
        words = _name(ctx).removeprefix("pdctl ")
        return f"It goes before the command: pdctl {option}{value} {words}. "
    near = did_you_mean(option, [name for one in ctx.command.params for name in one.opts if name.startswith("--")])
    having = [f"pdctl {' '.join(path)}" for path, command in _walk(root) if _has(command, option)]
    if not having:
        return near
    if ctx is root:
        return near or f"It goes after the command: {having[0]} {option}. "
    return f"{near}It is an option of {', '.join(having[:MOST])}{' and others' if len(having) > MOST else ''}. "


def _has(command: Any, option: str) -> bool:
    return any(option in one.opts for one in command.params)


def _walk(root: Any) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Yield every command with its path; those of groups after the group. One that can't be loaded is left out."""
    for name in root.command.list_commands(root):
        try:
            command = root.command.get_command(root, name)
        except ImportError:
            continue
        yield (name,), command
        for sub, one in getattr(command, "commands", {}).items():
            yield (name, sub), one


# ---- what Typer says, in plainer words -------------------------------------------------------------------------------


def _message(error: Any) -> str:
    """Return Typer's message of a value that can't be, with the value and without the words of its libraries."""
    text = str(error.format_message())
    cause = getattr(error.__cause__, "errors", None)
    wrong = cause()[0] if callable(cause) else {}
    said = _words(wrong) or str(error.message).removeprefix("Value error, ")
    hint = getattr(error, "param_hint", None)
    param = getattr(error, "param", None)
    if not text.startswith("Invalid value"):
        return text.rstrip(".")
    where = hint or (param.get_error_hint() if param is not None else "")
    where = where if isinstance(where, str) else " / ".join(where)
    where = re.sub(r"['\[\]]|\.\.\.", "", where)
    return f"{where}: {said.rstrip('.')}" if where else said.rstrip(".")


def _words(wrong: dict[str, Any]) -> str:
    kind, given, limit = str(wrong.get("type", "")), wrong.get("input"), wrong.get("ctx", {})
    if kind.startswith("int"):
        return f"{given!r} is no whole number"
    if kind in ("greater_than_equal", "less_than_equal"):
        [bound] = limit.values()
        return f"{given} is {'under' if kind.startswith('greater') else 'over'} the limit, {bound}"
    return ""
