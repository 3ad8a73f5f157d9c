"""``--watch`` of commands: they look again and again until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pdctl.commands.ending import ctrl_c
from pdctl.commands.options import seconds
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format

if TYPE_CHECKING:
    from pdctl.report.output import Output

EVERY = "2s"
"""What ``--watch`` without a time means."""
_OPTION, _METAVAR = "--watch", "[TIME]"

WatchOption = Annotated[
    Optional[float],  # noqa: UP045  # typer evaluates annotations
    typer.Option(
        _OPTION,
        parser=seconds,
        metavar=_METAVAR,
        help=f"Look again TIME after each look, {EVERY} if none is given. Ctrl-C ends with the last look's exit code.",
    ),
]


def with_times(command: Any, words: Sequence[str]) -> list[str]:
    """Return the words after a command, with a time for a ``--watch`` that has none: Typer's options need a value."""
    if not any(_OPTION in one.opts and one.metavar == _METAVAR for one in command.params):
        return list(words)
    following = [*words, "-"][1:]
    return [
        f"{_OPTION}={EVERY}" if word == _OPTION and after.startswith("-") else word
        for word, after in zip(words, following, strict=True)
    ]


def watch(look: Callable[[Output], int], form: Format, every_s: float, for_s: float | None = None) -> int:
    """Look until Ctrl-C, for ``for_s`` seconds, or until nobody reads; return the exit code of the last look.

    look: writes one look to the output that it is given, and returns its exit code. One that finds no ranks is said and
    followed by the next. Raises typer.BadParameter for a format that is one whole, PdctlError (USAGE) of the first look.
    """
    from pdctl.report.repeated import RepeatedOutput

    if not (form.drawn or form is Format.JSONL):
        raise typer.BadParameter(f"-o {form.value} is one document: use -o table, wide or jsonl", param_hint=_OPTION)
    out = RepeatedOutput(form, every_s)
    code: int | None = None
    end = None if for_s is None else time.monotonic() + for_s
    try:
        with ctrl_c() as pressed:
            while True:
                out.begin()
                try:
                    code = look(out)
                except PdctlError as error:
                    if out.gone or (code is None and error.code is Exit.USAGE):
                        raise
                    out.error(error.message, error.next_step, error.details)
                    code = int(error.code)
                out.end(code)
                if out.gone or (end is not None and time.monotonic() + every_s > end):
                    return code
                pressed.check()
                out.wait()
    except KeyboardInterrupt:
        if code is None:
            raise
        return code
