"""Options of ``pdctl inject``: one for each row of the kinds of faults; and what options mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from pdctl.faults.kinds import KINDS, Kind
from pdctl.faults.limits import MAX_TTL_S
from pdctl.inject import parameter
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError

_T = TypeVar("_T")

Given = Mapping[str, "str | bool"]
"""What was written for each kind of fault: "" or False for nothing."""


def with_faults(command: Callable[..., int]) -> Callable[..., int]:
    """Return ``command`` with an option for each kind of fault in the place of its parameter ``faults``, a Given."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        parameters += _parameters() if one.name == "faults" else [one.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def with_options(**arguments: Any) -> int:
        return command(faults={kind.name: arguments.pop(_variable(kind)) for kind in KINDS.values()}, **arguments)

    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def _parameters() -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            _variable(kind),
            inspect.Parameter.KEYWORD_ONLY,
            default="" if kind.parameter.metavar else False,
            annotation=Annotated[str if kind.parameter.metavar else bool, _option(kind)],
        )
        for kind in KINDS.values()
    ]


def _variable(kind: Kind) -> str:
    return kind.name.replace("-", "_")


def _option(kind: Kind) -> Any:
    limit = f", at most {durations.show(kind.most_s)}" if kind.most_s < MAX_TTL_S else ""
    text = f"{kind.what[0].upper()}{kind.what[1:]}{limit} ({kind.aim.value} --rank)."
    if kind.parameter.metavar:
        return typer.Option(f"--{kind.name}", metavar=kind.parameter.metavar, help=text, show_default=False)
    return typer.Option(f"--{kind.name}", help=text)


def parse_fault(given: Given) -> tuple[Kind, float, int]:
    """Return the one kind that the options name, with its delay in seconds and its number, 0 for what it has not.

    Raises typer.BadParameter for none, for two, and for a parameter that is none; PdctlError (REFUSED) for a duration
    over the limit.
    """
    named = [kind for kind in KINDS.values() if given.get(kind.name)]
    if not named:
        raise typer.BadParameter("name one fault, as --delay-metadata TIME; --help lists them")
    if len(named) > 1:
        raise typer.BadParameter("one fault at a time, not " + " and ".join(f"--{kind.name}" for kind in named))
    kind = named[0]
    return kind, *_checked(lambda: parameter.parse(kind, str(given[kind.name])))


def parse_lifetime(text: str) -> float:
    """Return the seconds of ``--for``. Raises typer.BadParameter, and PdctlError (REFUSED) over the limit."""
    return _checked(lambda: durations.parse(text, most_s=MAX_TTL_S, what="--for"))


def parse_share(text: str) -> float:
    """Return ``10%`` or ``0.1`` as 0.1. Raises typer.BadParameter for what is not over 0 and at most 100%."""
    written = text.strip()
    number, percent = (written[:-1], 100.0) if written.endswith("%") else (written, 1.0)
    try:
        found = float(number) / percent
    except ValueError:
        found = -1.0
    if not 0.0 < found <= 1.0:  # false for NaN as well
        raise typer.BadParameter(f"--share {text!r} is no share: write 10% or 0.1, over 0 and at most 100%")
    return found


def _checked(parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except durations.TooLong as error:  # what a fault may cost at most is a safety rule
        raise PdctlError(str(error), "no option widens it", Exit.REFUSED) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
