"""Identify the Python of a process by its mapped files. No code of it is executed."""

from __future__ import annotations

import re
from pathlib import Path

from pdctl.introspect.layouts import LAYOUTS, NEWEST, OLDEST, Layout

_EXTENSION = re.compile(r"\.cpython-(\d)(\d+)(t?)(d?)-[^/]*\.so$")
_LIBRARY = re.compile(r"/libpython(\d)\.(\d+)(t?)(d?)\.so")
_EXECUTABLE = re.compile(r"/python(\d)\.(\d+)(t?)(d?)$")
_OTHERS = re.compile(r"/(?:pypy|graalpy|jython)[^/]*$")
_SITE = re.compile(r"^(.*)/lib(?:64)?/python\d+\.\d+t?/(?:site|dist)-packages/")


class ForeignError(Exception):
    """The process is no Python that can be read; the text says which it is."""


def mapped_files(pid: int) -> list[str]:
    """Return the paths of the files a process has mapped, each once, its executable first. Raises OSError."""
    paths = [str(Path(f"/proc/{pid}/exe").readlink())]
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        _, slash, path = line.partition("/")
        if slash:
            paths.append(f"/{path.removesuffix(' (deleted)')}")
    return list(dict.fromkeys(paths))


def layout_of(paths: list[str]) -> Layout:
    """Return the layout of the Python that has these files mapped. Raises ForeignError."""
    for pattern in (_EXTENSION, _LIBRARY, _EXECUTABLE):
        for path in paths:
            found = pattern.search(path)
            if found:
                return _known(int(found[1]), int(found[2]), found[3], found[4])
    other = next((path for path in paths if _OTHERS.search(path)), None)
    if other:
        raise ForeignError(f"it runs {other}, which is not CPython")
    raise ForeignError(f"it is no Python process, it runs {paths[0]}" if paths else "it is no Python process")


def _known(major: int, minor: int, threaded: str, debug: str) -> Layout:
    name = f"Python {major}.{minor}"
    if threaded or debug:
        build = "a free-threaded build" if threaded else "a debug build"
        raise ForeignError(f"it runs {name}, {build}: only ordinary builds, with a GIL, can be read")
    layout = LAYOUTS.get((major, minor))
    if layout is None:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise ForeignError(f"it runs {name}: objects of CPython {oldest} to {newest} can be read")
    return layout


def environments(paths: list[str]) -> list[Path]:
    """Return the directories of Python environments that mapped files are in (a venv, or a prefix)."""
    found = [Path(match[1]) for path in paths if (match := _SITE.match(path))]
    return list(dict.fromkeys([*found, *(Path(path).parents[1] for path in paths[:1] if path.count("/") > 2)]))
