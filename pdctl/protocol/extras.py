"""The extras of the package: which module each one is about, and what pdctl says where that is missing."""

from __future__ import annotations

import importlib.util

from pdctl.protocol.errors import Exit, PdctlError

MODULES = {
    "data": "pandas",
    "lab": "torch",
    "mooncake-cpu": "mooncake",
    "plot": "matplotlib",
    "replay": "torch",
    "store": "torch",
    "top": "textual",
}
"""The module that is looked for, by extra. py-spy (``attach``) is a program: :mod:`pdctl.introspect.pyspy` looks for it."""


def install(extra: str) -> str:
    """Return the command that brings an extra."""
    return f"pip install 'pdctl[{extra}]'"


def require(extra: str, what: str) -> None:
    """Raise PdctlError (USAGE) where the module of ``extra`` is not installed. Nothing is imported.

    what: the command or option that needs it, the subject of the message.
    """
    module = MODULES[extra]
    if importlib.util.find_spec(module) is None:
        raise PdctlError(f"{what} needs {module}, which is not installed: {install(extra)}", code=Exit.USAGE)
