"""The result of ``pdctl lab up --listen``: the endpoint of each rank for other hosts, or why it does not listen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pdctl.lab.config import LabConfig
from pdctl.lab.state import Process
from pdctl.protocol import paths


def listening(config: LabConfig, process: Process) -> tuple[str, str]:
    """Return the endpoint of a lab's rank, and why it has none; both "" if none was requested, and for other processes."""
    if not config.listen or process.label in ("supervisor", "bootstrap"):
        return "", ""
    name = f"{paths.stem(process.pid, process.start)}{paths.REGISTRATION_SUFFIX}"
    try:
        r = paths.read_registration(Path(config.run_dir) / name)
    except (OSError, ValueError) as error:
        return "", f"its agent is not registered: {error}"
    return r.tcp, "" if r.tcp else r.tcp_off or "its agent was not asked to listen"


def complaints(reasons: Mapping[str, str], name: str) -> Iterable[str]:
    """Yield what to say of ranks that do not listen, then what to do. reasons: by rank, "" for those that do."""
    said: dict[str, list[str]] = {}
    for rank, why in reasons.items():
        if why:
            said.setdefault(why, []).append(rank)
    for why, ranks in said.items():
        verb = "does" if len(ranks) == 1 else "do"
        who = "no rank listens" if len(ranks) == len(reasons) else f"{', '.join(ranks)} {verb} not listen"
        yield f"{who}: {why.removeprefix('no TCP socket: ')}"
    if said:
        yield (
            f"mend that, then pdctl lab down --name {name}, and up again. Keys: pdctl keys new server, pdctl keys new NAME, "
            "pdctl keys authorize NAME --role observe|inject. Ports: a range, tcp://ADDRESS:FIRST-LAST, has one for each rank"
        )
