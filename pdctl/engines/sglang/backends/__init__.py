"""What is different between the transfer backends of SGLang: one class each, found by the KV manager that is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdctl.engines.sglang.backends.base import Backend
from pdctl.engines.sglang.backends.mooncake import Mooncake
from pdctl.engines.sglang.backends.nixl import Nixl


def backend_of(scheduler: Any, modules: Mapping[str, Any] | None = None) -> Backend:
    """Return the backend of a rank by the name of its KV manager's class; the common one for a class that is not known.

    modules: the loaded modules of the rank, if it is another process.
    """
    for kind in (Mooncake, Nixl):
        backend = kind(scheduler, modules)
        if backend.is_it():
            return backend
    return Backend(scheduler, modules)
