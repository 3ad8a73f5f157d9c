"""What the engine tests install: SGLang versions, their pins, and what each lacks on a machine without a GPU.

Pure data. :func:`recipe_key` names the directory it is installed into, and :attr:`EngineVersion.part` what is installed
there for one version, so that changing the data below (and nothing else) installs anew what it is about; raise
:data:`REVISION` when `install.py` starts to build something different.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

REVISION = 1

ASSETS = Path(__file__).parent / "assets"
#: Start-up patches, run in every engine process that is given ``PDCTL_TEST_STARTUP`` (see ``assets/startup_hook.py``).
PATCHES = ASSETS / "engine_patches.py"
#: A package ``sgl_kernel`` with names only. The real one is built for CUDA or needs AVX512.
STUB = ASSETS / "stub"
REQUIREMENTS = ASSETS / "requirements.txt"

TINY_MODEL = ASSETS / "tiny_model.py"
STARTUP_HOOK = ASSETS / "startup_hook.py"

#: Shared libraries that the wheels expect of the system, and ``ip`` for the loopback namespace: names of
#: `tools.provision.DEBIAN_PACKAGES`.
SYSTEM = (
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libnuma.so.1",
    "libcurl.so.4",
    "libjemalloc.so.2",
    "liburing.so.2",
    "ip",
)

TORCH = "torch==2.13.0"

#: Installed without their dependencies: the dependencies they do need on a CPU are in ``requirements.txt``, the rest is
#: CUDA-only. torchvision's ops do not load beside a CPU torch, hence the patch in ``install.py``.
WITHOUT_DEPENDENCIES = (
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "xgrammar==0.2.1",
    "torchao==0.17.0",
    "triton==3.9.0",
    "kernels>=0.14.1,<0.15",
    "smg-grpc-servicer>=0.5.0",
    "torchvision==0.28.0",
)


#: Into a directory of its own, without dependencies: numpy and torch are the engine's, and one of two CUDA builds is enough.
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
#: What of it needs a GPU.
NIXL_LEFT_OUT = ("nixl_ep", "nixl_ep_cu12", "include", "pkgconfig", "bin")
#: What runs SGLang's own tests, into a directory of its own.
PYTEST = ("pytest==9.2.0", "pluggy==1.7.0", "iniconfig==2.3.1")


@dataclass(frozen=True)
class EngineVersion:
    """One SGLang version: what its directory holds besides SGLang, and what it needs on a CPU.

    `pins` are the pins of that version's own METADATA that differ from the base version's. `stub` puts the
    ``sgl_kernel`` stub on the path. `patches` are names from ``assets/engine_patches.py``. `plugins`: whether it loads any.
    `often`: it is tested at every change; the others in ``make test-long``.
    """

    version: str
    pins: tuple[str, ...] = ()
    stub: bool = False
    patches: tuple[str, ...] = ()
    decode_args: tuple[str, ...] = ()
    plugins: bool = True
    often: bool = True

    @property
    def part(self) -> str:
        """Name of its part of the installation: another one where its pins are others."""
        return f"{self.version}-{hashlib.sha256(repr(self.pins).encode()).hexdigest()[:6]}"


#: Lives in the venv itself; every other version is a directory put before it on PYTHONPATH.
BASE = EngineVersion("0.5.13.post1")

OVERLAYS = (
    EngineVersion("0.5.10.post1", ("transformers==5.3.0", "xgrammar==0.1.32"), stub=True, plugins=False),
    EngineVersion("0.5.11", ("transformers==5.6.0", "xgrammar==0.1.32"), stub=True, often=False),
    EngineVersion("0.5.12.post1", ("transformers==5.6.0", "xgrammar==0.2.0"), stub=True),
    EngineVersion("0.5.15", ("transformers==5.12.1", "xgrammar==0.2.1"), stub=True, often=False),
    EngineVersion("0.5.18", ("transformers==5.12.1", "xgrammar==0.2.1"), stub=True, often=False),
    EngineVersion(
        "0.5.22",
        ("transformers==5.19.0", "xgrammar==0.2.7", "tokenizers>=0.23.1,<0.24"),
        stub=True,
        patches=("no-pinned-memory",),
        decode_args=("--disaggregation-decode-retraction-backup", "cpu_tensor"),
        often=False,
    ),
    EngineVersion(
        "0.5.23",
        ("transformers==5.19.0", "xgrammar==0.2.7", "tokenizers>=0.23.1,<0.24"),
        stub=True,
        patches=("no-pinned-memory",),
        decode_args=("--disaggregation-decode-retraction-backup", "cpu_tensor"),
    ),
)

NEWS = "PDCTL_TEST_ENGINE_NEWS"
"""Names one more version and its pins: ``0.5.24 transformers==5.20.0``. It is else like the one before it."""


def number(version: str) -> tuple[int, ...]:
    """What versions are ordered by: ``0.5.13.post1`` is (0, 5, 13, 1)."""
    return tuple(map(int, re.findall(r"\d+", version)))


def before(version: str, known: Iterable[EngineVersion] = OVERLAYS) -> EngineVersion:
    """The newest of `known` that is older than `version`, the oldest of them where none is."""
    order = sorted(known, key=lambda one: number(one.version))
    return next((one for one in reversed(order) if number(one.version) < number(version)), order[0])


def _news() -> tuple[EngineVersion, ...]:
    version, *pins = os.environ.get(NEWS, "").split() or [""]
    known = {BASE.version, *(one.version for one in OVERLAYS)}
    return (replace(before(version), version=version, pins=tuple(pins)),) if version and version not in known else ()


VERSIONS = {v.version: v for v in (BASE, *OVERLAYS, *_news())}


def recipe_key() -> str:
    """Twelve hexadecimal digits that change whenever a new installation is needed."""
    digest = hashlib.sha256()
    digest.update(
        f"{REVISION} {sys.version_info[:2]} {TORCH} {WITHOUT_DEPENDENCIES} {BASE.version} {BASE.pins}".encode()
    )
    for asset in (REQUIREMENTS, STARTUP_HOOK, TINY_MODEL):
        digest.update(asset.read_bytes())
    return digest.hexdigest()[:12]
