"""``transfer_kv*`` by name: SGLang up to 0.5.12.post1 imports them for HiCache, which these servers do not use."""

from __future__ import annotations

from typing import Any

from sgl_kernel import not_on_this_machine


def __getattr__(name: str) -> Any:
    if name.startswith("transfer_kv"):
        return not_on_this_machine(name)
    raise AttributeError(f"the sgl_kernel.kvcacheio stub has no {name!r}")
