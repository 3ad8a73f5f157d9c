"""pdctl: diagnose and break SGLang prefill/decode disaggregation, on purpose and for a while."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any

__version__ = "0.1.0"


def load_trace(path: str | PathLike[str]) -> Any:
    """Return a trace, a directory of recordings or one recording as pandas DataFrames (docs/dataframes.md).

    The result is a :class:`pdctl.trace.frames.Trace` with ``ranks``, ``rounds``, ``items`` and ``events``. Raises
    :class:`pdctl.protocol.errors.PdctlError` where there is nothing that can be read, or no pandas.
    """
    # By name: ranks import this package, and pandas must not come with it.
    import_module("pdctl.protocol.extras").require("data", "load_trace")
    return import_module("pdctl.trace.frames").load_trace(path)


__all__ = ["__version__", "load_trace"]
