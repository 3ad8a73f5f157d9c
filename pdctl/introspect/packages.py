"""Which installed package a library that a process has loaded is from: by /proc, and the file system that it sees."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

_MOST = 8 << 20
_SITE = re.compile(r"(/\S*/(?:site|dist)-packages)/([A-Za-z0-9_]+)")
_DIST = re.compile(r"([A-Za-z0-9_.]+)-([0-9][\w.+!]*)\.dist-info", re.ASCII)
_MOST_NAMES = 20_000


def version_of(pid: int, names: Collection[str]) -> str:
    """Return name and version of the one package of ``names`` that process ``pid`` has loaded a library of, "" unknown.

    names: how the names of distributions begin (``mooncake_transfer_engine``, and with it its builds for other devices).
    """
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            text = file.read(_MOST).decode(errors="replace")
        sites = {found[1] for found in _SITE.finditer(text)}
        loaded = {found[2].lower() for found in _SITE.finditer(text)}
        found = set()
        for site in sorted(sites)[:8]:
            with os.scandir(f"/proc/{pid}/root{site}") as entries:
                for _, entry in zip(range(_MOST_NAMES), entries, strict=False):
                    dist = _DIST.fullmatch(entry.name)
                    if dist is not None and dist[1].lower().startswith(tuple(names)) and _is_loaded(dist[1], loaded):
                        found.add(f"{dist[1].replace('_', '-')} {dist[2]}")
    except OSError:
        return ""
    return found.pop() if len(found) == 1 else ""


def _is_loaded(dist: str, loaded: Collection[str]) -> bool:
    """Return whether a library is from the package of this distribution, by the first word of both names."""
    return any(one.partition("_")[0] == dist.lower().partition("_")[0] for one in loaded)
