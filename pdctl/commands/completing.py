"""Completes values in a shell. Nothing here asks a rank, writes a line or fails: without values nothing is completed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pdctl.protocol.model import Identity

MOST_RANKS = 1_000
_PLAIN = re.compile(r"\w[\w .:@%+=,/\[\]-]*|\[[\w:.]+\]:\d+")
"""Values that do nothing in a shell: a completion for zsh is evaluated, one for bash stands on the command line as it is."""


def values(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion with the values of a kind: a key of KINDS."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            found = dict.fromkeys(KINDS[kind](ctx))
        except Exception:  # noqa: BLE001  # a file that can't be read, a context that is not there
            return []
        return [value for value in found if value.startswith(incomplete) and _PLAIN.fullmatch(value)]

    return complete


def _identities(ctx: typer.Context) -> list[Identity]:
    """Return this host's ranks, by their registrations."""
    from pdctl.protocol import paths
    from pdctl.targets.reach import Reach

    given = [ctx.params.get(name) for name in ("run_dir", "record_dir")]
    env = (ctx.find_object(Reach) or Reach()).at(*given).environment()
    files = [file for folder in paths.run_dirs(env) for file in sorted(folder.glob("*.json"))]
    found = []
    for file in files[:MOST_RANKS]:
        try:
            found.append(paths.read_registration(file).identity)
        except (OSError, ValueError):
            continue
    return found


def _ranks(ctx: typer.Context) -> Iterable[str]:
    found = [one.selector for one in _identities(ctx)]
    return [*dict.fromkeys(one.partition(":")[0] for one in found), *sorted(found)]


def _groups(ctx: typer.Context) -> Iterable[str]:
    return sorted({f"{one.role}:dp{one.dp}:pp{one.pp}" for one in _identities(ctx) if one.tp >= 0})


def _servers(ctx: typer.Context) -> Iterable[str]:
    from pdctl.targets.selectors import address

    return sorted({address(one.role, one.service) for one in _identities(ctx)})


def _labs(_: typer.Context) -> Iterable[str]:
    from pdctl.protocol import paths

    folders = paths.run_dirs(os.environ)
    return sorted(file.parent.name.removeprefix("lab-") for one in folders for file in one.glob("lab-*/lab.json"))


def _contexts(_: typer.Context) -> Iterable[str]:
    from pdctl.targets import contexts

    return sorted(contexts.load().context)


def _keys(_: typer.Context) -> Iterable[str]:
    from pdctl.protocol import keys

    return keys.names(keys.folder(os.environ))


def _words() -> Iterable[str]:
    from pdctl.report.glossary import glossary

    return glossary()


def _findings(_: typer.Context) -> Iterable[str]:
    from pdctl.report.findings import catalogue

    return catalogue()


def _drills(_: typer.Context) -> Iterable[str]:
    from pdctl.inject.drill import files

    return files.built_in()


def _stages(_: typer.Context) -> Iterable[str]:
    from pdctl.probes.registry import stages

    return [stage.name for stage in stages()]


def _queues(_: typer.Context) -> Iterable[str]:
    from pdctl.protocol.model import POLLED_QUEUES

    return POLLED_QUEUES


def _schemas(_: typer.Context) -> Iterable[str]:
    from pdctl.commands.schema_kinds import load_kinds

    return load_kinds()


def _policies(_: typer.Context) -> Iterable[str]:
    from pdctl.explore.policies import POLICIES

    return POLICIES


KINDS: dict[str, Callable[[typer.Context], Iterable[str]]] = {
    "rank": _ranks,
    "group": _groups,
    "server": _servers,
    "role": lambda ctx: sorted({one.role for one in _identities(ctx)}),
    "lab": _labs,
    "context": _contexts,
    "key": _keys,
    "finding": _findings,
    "explained": lambda ctx: [*_findings(ctx), *_words()],
    "drill": _drills,
    "stage": _stages,
    "level": lambda _: ("info", "warning", "error"),
    "queue": _queues,
    "schema": _schemas,
    "policy": _policies,
}
