"""``pdctl bridge``: the far side of ``--hosts``. No user runs it, so no help lists it."""

from __future__ import annotations

import os

import typer

from pdctl.commands.options import reach_of

EXAMPLES = ("ssh gpu001 pdctl bridge", "srun -w gpu001 pdctl bridge")

_ELSEWHERE = ("PDCTL_CONTEXT", "PDCTL_ENDPOINT", "PDCTL_STORE", "PDCTL_HOSTS")


def command(ctx: typer.Context) -> None:
    """Carry the questions of a pdctl on another host to the ranks of this one, over standard input and output."""
    from pdctl.targets.bridge_far import serve_stdio

    reach = reach_of(ctx)
    # What leads to other hosts again is taken from its own command line only: a variable that all hosts have would have no end.
    here = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    serve_stdio(reach.over(here), reach.forbid_faults)
