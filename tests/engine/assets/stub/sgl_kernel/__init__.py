"""Names of ``sgl_kernel`` that SGLang imports on a CPU; the real package is built for CUDA or needs AVX512.

SGLang 0.5.23 imports ``*_cpu`` functions when ``SGLANG_USE_CPU_ENGINE`` is set; of those a server without speculative
decoding calls none. Any other name stays missing, so that ``try: from sgl_kernel import ...`` keeps its fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def not_on_this_machine(name: str) -> Callable[..., NoReturn]:
    """A function that says that `name` was called although there is only a stub."""

    def call(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} was called, but this sgl_kernel is a stub that only has names")

    return call


def __getattr__(name: str) -> Any:
    if name.endswith("_cpu"):
        return not_on_this_machine(name)
    raise AttributeError(f"the sgl_kernel stub has no {name!r}")
