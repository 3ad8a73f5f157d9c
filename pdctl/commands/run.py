"""``pdctl run -- CMD…``: starts an engine with the agent in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from pdctl.commands.options import reach_of
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Output

EXAMPLES = (
    "pdctl run -- python -m sglang.launch_server --model-path MODEL",
    "pdctl run -- ./start-decode.sh --port 30001",
)

STARTUP = Path(__file__).parent.parent / "agent" / "startup"
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with the start-up directory first on PYTHONPATH, once, and pdctl's own place on it."""
    first = [str(STARTUP)]
    parts = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(STARTUP)]
    return {**env, "PYTHONPATH": os.pathsep.join(first + parts)}


def run(
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The engine's command line.", show_default=False)
    ],
) -> None:
    """Start an engine with the agent in every scheduler process it starts.

    SGLang before 0.5.11 needs it, since it has no plug-ins. Newer versions do not need it, and it does no harm there. The
    engine replaces pdctl: it has the same pid, its own exit status, and gets all signals. pdctl changes no file of the
    engine. It puts a start-up directory first on PYTHONPATH.
    """
    program = shutil.which(command[0])
    if program is None:
        raise PdctlError(f"run: {command[0]}: no such command", code=Exit.USAGE)
    said = reach_of(ctx).over(os.environ)  # the engine's agents publish themselves in the store that was named
    off = said.get("PDCTL_AGENT", "").strip().lower() in ("0", "off", "no", "false")
    env = said if off else environment(said)
    Output().note(
        f"pdctl run: {command[0]} without the agent (PDCTL_AGENT=off)"
        if off
        else f"pdctl run: {command[0]} with the agent, by {STARTUP} on PYTHONPATH"
    )
    os.execve(program, command, env)  # noqa: S606 - the user's own command, without a shell
