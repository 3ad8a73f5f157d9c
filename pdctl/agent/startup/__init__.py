"""The start-up directory of ``pdctl run``: it is put first on PYTHONPATH, and Python runs its ``sitecustomize`` first.

:func:`install` only places an import hook for the engine's scheduler module. Nothing else happens in processes that
never import it, and no thread is started from here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pdctl.agent import plugin


class _Loader(importlib.abc.Loader):
    """Loads as ``inner`` does, then tells the plug-in."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        try:
            plugin.scheduler_imported(module)
        except Exception:  # noqa: S110 - the engine must not notice
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # inspect, runpy and importlib.resources ask for more


class _Finder(importlib.abc.MetaPathFinder):
    """Sees the scheduler's module being imported, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != plugin.SCHEDULER_MODULE:
            return None
        sys.meta_path.remove(self)  # first: asking the others leads through this one again
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Place the import hook, unless PDCTL_AGENT=off or it is there already."""
    if not plugin.switched_off() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
