"""The processes beside the schedulers of a server: those that have ended or are stopped, as /proc shows them.

The main process of SGLang has the HTTP server and the tokenizer in it, and a prefill server's bootstrap server. Its children
are the schedulers, with several dp ranks by way of a controller, the detokenizer, and more tokenizers where it was told so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdctl.protocol.processes import Child, Process, look_with_parent

MAIN, CONTROLLER, DETOKENIZER, TOKENIZER = "main process", "data-parallel controller", "detokenizer", "tokenizer worker"
_CHILDREN = {"sglang::detoken": DETOKENIZER, "sglang::tokeniz": TOKENIZER, "sglang::data_pa": CONTROLLER}
"""What the kernel keeps of a process's title → what it is."""


@dataclass(frozen=True)
class Service:
    """A process that has ended and was not reaped, or that is stopped. name: what it is."""

    name: str
    pid: int
    process: Process


def held(ranks: Collection[int]) -> dict[int, list[Service]]:
    """Return such processes of the servers of these schedulers: pid of a scheduler → processes, where there are any."""
    table = {int(one.name): look_with_parent(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdecimal()}
    return held_in(table, ranks)


def held_in(table: Mapping[int, Child], ranks: Collection[int]) -> dict[int, list[Service]]:
    """Return the same of the processes in ``table``."""
    children: dict[int, list[int]] = {}
    for pid, one in table.items():
        if one.name in _CHILDREN:
            children.setdefault(one.parent, []).append(pid)
    found = {}
    for rank in ranks:
        main = table.get(rank, Child()).parent
        if _CHILDREN.get(table.get(main, Child()).name) == CONTROLLER:
            main = table[main].parent
        beside = [(MAIN, main), *((_CHILDREN[table[pid].name], pid) for pid in children.get(main, ()))]
        services = [Service(name, pid, table[pid].process) for name, pid in beside if pid in table and main > 0]
        found[rank] = [one for one in services if one.process.state in ("Z", "T")]
    return {rank: services for rank, services in found.items() if services}
