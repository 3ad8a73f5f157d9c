"""What the commands of ``pdctl lab`` share: the option that names a lab, and the way to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.commands.completing import values
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.reach import Reach

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.lab.config import LabConfig
    from pdctl.lab.state import Process

NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        autocompletion=values("lab"),
        help="Name of the lab. Several labs need different names.",
    ),
]


def env_of(run_dir: Path | None, record_dir: Path | None = None) -> dict[str, str]:
    """Return the environment with these directories in it."""
    return Reach(run_dir=run_dir, record_dir=record_dir).over(os.environ)


def find_lab(name: str, env: dict[str, str]) -> tuple[LabConfig, list[Process]]:
    """Return a lab's configuration and processes. Raises PdctlError where there is none of that name."""
    from pdctl.lab import launch, state
    from pdctl.lab.config import check_name

    try:
        return launch.status(check_name(name), env)
    except PdctlError as error:
        others = [other for other in state.labs(env) if other != name]
        if others and error.code == Exit.UNREACHABLE:
            raise PdctlError(error.message, f"running: {', '.join(others)} (choose with --name)", error.code) from None
        raise


def one_of(value: str, known: tuple[str, ...], what: str) -> str:
    """Return ``value`` where it is a known one. Raises PdctlError (USAGE)."""
    if value not in known:
        raise PdctlError(f"there is no {what} {value!r}", f"known: {', '.join(known)}", Exit.USAGE)
    return value


def check_alive(name: str, processes: list[Process]) -> None:
    """Raise PdctlError (UNREACHABLE) where no process of the lab is there."""
    if not any(process.alive for process in processes):
        raise PdctlError(
            f"no process of lab {name!r} is there any more", f"pdctl lab down --name {name}, then up", Exit.UNREACHABLE
        )
