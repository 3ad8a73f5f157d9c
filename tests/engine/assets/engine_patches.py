"""What some engine versions need to run without a GPU, applied as their modules are imported.

``PDCTL_TEST_PATCHES`` lists the patches by name, comma-separated. None of them touches what pdctl reads or hooks, but for
``late-metadata``, which stands in for a slow network where there is no pdctl to break anything, ``slow-forward``,
which stands in for a long prompt, and ``lost-release``, which stands in for an acknowledgement that is lost, and for an
engine that forgets on one rank what its group keeps.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def _ignore_pin_memory(_module: ModuleType) -> None:
    """0.5.23's prefill asks for pinned memory whatever the device is; without CUDA torch refuses."""
    import torch

    for name in ("tensor", "empty", "zeros", "full", "arange"):
        setattr(torch, name, _without_pin_memory(getattr(torch, name)))


def _without_pin_memory(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def factory(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        del pin_memory
        return make(*args, **kwargs)

    return factory


def _no_host_indices(connection: ModuleType) -> None:
    """0.5.23 makes a ``torch.cuda.Event`` for index tensors that stay on the host."""
    connection.MooncakeKVSender.supports_host_tensor_indices = False  # type: ignore[attr-defined]


def _pad_value(backend: ModuleType) -> None:
    """dp attention pads a batch to its group's size with this attention backend's value for a sequence's length."""
    backend.TorchNativeAttnBackend.get_cuda_graph_seq_len_fill_value = lambda self: 1  # type: ignore[attr-defined]


def _copy_in_torch(dp_attention: ModuleType) -> None:
    """Up to 0.5.18 dp attention copies rows with a Triton kernel, and asks for pinned memory.

    Batches of decode are gathered by an operator that a CPU has not; those of prefill by all_reduce, and so are all here.
    """
    dp_attention.memcpy_triton = _copy_rows  # type: ignore[attr-defined]
    _ignore_pin_memory(dp_attention)
    modes = dp_attention.DpPaddingMode  # type: ignore[attr-defined]
    modes.get_dp_padding_mode = classmethod(lambda cls, *_: cls.SUM_LEN)


def _copy_rows(dst: Any, src: Any, dim: int, offset: Any, sz: Any, offset_src: bool) -> None:
    assert dim == 0
    rows, first = int(sz), int(offset)
    if offset_src:
        dst[:rows].copy_(src[first : first + rows])
    else:
        dst[first : first + rows].copy_(src[:rows])


def _dram_for_vram(api: ModuleType) -> None:
    """SGLang names its KV memory VRAM whatever the device is; without a GPU it lies in DRAM, and UCX registers it as such."""
    init = api.nixl_agent.__init__  # type: ignore[attr-defined]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        self.nixl_mems = {**self.nixl_mems, "VRAM": self.nixl_mems["DRAM"]}

    api.nixl_agent.__init__ = __init__  # type: ignore[attr-defined]


def _late_metadata(connection: ModuleType) -> None:
    """While the file ``PDCTL_TEST_LATE`` exists, metadata gets to decode tp1 as many seconds late as it says."""
    manager = connection.MooncakeKVManager
    send_aux, file = manager.send_aux, Path(os.environ["PDCTL_TEST_LATE"])

    def later(self: Any, req: Any, *args: Any) -> Any:
        if self.decode_kv_args_table[req.mooncake_session_id].dst_tp_rank != 1 or not file.exists():
            return send_aux(self, req, *args)
        timer = threading.Timer(float(file.read_text()), send_aux, (self, req, *args))
        timer.daemon = True
        timer.start()
        return 0

    manager.send_aux = later


def _slow_forward(runner: ModuleType) -> None:
    """A forward of the role that is in the file ``PDCTL_TEST_SLOW`` takes as long as that file exists."""
    model_runner, file = runner.ModelRunner, Path(os.environ["PDCTL_TEST_SLOW"])
    forward = model_runner.forward

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            while file.read_text() == self.server_args.disaggregation_mode:
                time.sleep(0.05)
        return forward(self, *args, **kwargs)

    model_runner.forward = slow


def _lost_release(decode: ModuleType) -> None:
    """As the file ``PDCTL_TEST_RELEASE`` says, decode tp1 does not hear that prefill writes no more (``keep``), or forgets the
    memory that it keeps for prefill (``lose``)."""
    queue, file = decode.DecodeTransferQueue, Path(os.environ["PDCTL_TEST_RELEASE"])
    resolve, withheld = queue.resolve_deferred_releases, dict[int, set[int]]()

    def resolves(self: Any) -> None:
        if self.tp_rank == 1 and self._deferred_releases:
            word = file.read_text() if file.exists() else ""
            if word == "lose":
                self._deferred_releases.clear()
            for entry in self._deferred_releases:
                room = entry[0].req.bootstrap_room
                told = entry[0].kv_receiver.kv_mgr._deferred_abort_ack_tracker.get(room)
                acks = set() if told is None else told.prefill_ranks
                if word == "keep":
                    withheld.setdefault(room, set()).update(acks)
                    acks.clear()
                else:
                    acks.update(withheld.pop(room, ()))
        resolve(self)

    queue.resolve_deferred_releases = resolves


PATCHES: dict[str, dict[str, Patch]] = {
    "no-pinned-memory": {
        "sglang.srt.managers.scheduler": _ignore_pin_memory,
        "sglang.srt.disaggregation.mooncake.conn": _no_host_indices,
    },
    "nixl-on-cpu": {"nixl_cu12._api": _dram_for_vram},
    "late-metadata": {"sglang.srt.disaggregation.mooncake.conn": _late_metadata},
    "slow-forward": {"sglang.srt.model_executor.model_runner": _slow_forward},
    "lost-release": {"sglang.srt.disaggregation.decode": _lost_release},
    # Tokens come out wrong with it, all else is as it should be.
    "dp-attention": {
        "sglang.srt.layers.attention.torch_native_backend": _pad_value,
        "sglang.srt.layers.dp_attention": _copy_in_torch,
    },
}


class _Patching(importlib.abc.Loader):
    """Loads like `inner`, then applies `patch`."""

    def __init__(self, inner: importlib.abc.Loader, patch: Patch) -> None:
        self._inner = inner
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        # inspect, runpy and importlib.resources ask the loader for more than the two methods.
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._patches:
            return None
        # Taken out of the table first: asking the other finders leads through this one again.
        patch = self._patches.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, patch)
        return spec


def install(names: str) -> None:
    """Arrange for the patches in the comma-separated list `names`. Raises `KeyError` for one that does not exist."""
    wanted: dict[str, Patch] = {}
    for name in filter(None, names.split(",")):
        wanted |= PATCHES[name]
    if wanted:
        sys.meta_path.insert(0, _Finder(wanted))


install(os.environ.get("PDCTL_TEST_PATCHES", ""))
