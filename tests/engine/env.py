"""Environments to run a real SGLang in, without a GPU: one per engine version, and a network namespace for them.

::

    env = engine_env("0.5.12.post1")            # EngineNotInstalledError names the command that installs it
    env = env.with_path(install_pdctl(tmp_path / "site"))    # the agent, found through its entry point
    with loopback_namespace() as ns:            # ports are private to it: use fixed ones
        argv = env.server_argv("decode", port=30200, tp=2)   # python -m sglang.launch_server ...
        server = subprocess.Popen(ns.argv(argv), env=env.process_environ({"PDCTL_ARM": "1"}, tp=2))
        with ns.entered():                      # this thread's new sockets and children are inside, too
            urllib.request.urlopen("http://127.0.0.1:30200/health")

`EngineEnv` holds

- ``version``: of SGLang, e.g. ``"0.5.12.post1"``
- ``python``: the interpreter
- ``model``: a tiny Llama with random weights, tokenizer included
- ``environ``: the variables to add to (or replace in) a process's environment, PYTHONPATH included
- ``server_args``, ``decode_args``: arguments every server of that version needs here / decode servers only

and is immutable; ``with_path(*dirs)`` and ``with_environ(**variables)`` return changed copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.engine import recipe
from tools.provision import cache_root

ROOT = Path(__file__).resolve().parents[2]

GROUP_PORT = 50
"""The port of a server's process group, from its own port on."""

_CLONE_NEWNET = 0x40000000
_NAMESPACE_PREFIX = "pdctl-test-"
_NAMESPACE_DIR = Path("/run/netns")
_counter = itertools.count()


class EngineNotInstalledError(RuntimeError):
    """This version of the engine is not on this machine; the message says how to get it."""


def engine_home() -> Path:
    """Directory of the installation that fits the current recipe (it may not exist yet)."""
    return cache_root() / f"engine-{recipe.recipe_key()}"


def stamp(part: str, home: Path | None = None) -> Path:
    """File that exists once `part` (``"venv"``, ``"model"`` or that of an overlay) is completely installed."""
    return (home or engine_home()) / f"{part}.complete"


def site_packages(home: Path | None = None) -> Path:
    """site-packages of the engine's venv."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (home or engine_home()) / "venv" / "lib" / version / "site-packages"


def source_of(version: str) -> Path:
    """Directory that holds the package `sglang` of a version."""
    engine = recipe.VERSIONS[version]
    return site_packages() if engine is recipe.BASE else engine_home() / "overlays" / engine.part


@dataclass(frozen=True)
class EngineEnv:
    """How to start one version of the engine. See the module's docstring for the fields."""

    version: str
    python: Path
    model: Path
    environ: Mapping[str, str]
    server_args: tuple[str, ...]
    decode_args: tuple[str, ...] = ()

    def with_path(self, *directories: Path) -> EngineEnv:
        """A copy whose PYTHONPATH starts with `directories`."""
        rest = [p for p in self.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        return self.with_environ(PYTHONPATH=os.pathsep.join([*map(str, directories), *rest]))

    def with_environ(self, **variables: str) -> EngineEnv:
        """A copy with `variables` added to its environment."""
        return replace(self, environ={**self.environ, **variables})

    def with_patches(self, *names: str) -> EngineEnv:
        """A copy whose processes start with more patches of ``assets/engine_patches.py``."""
        before = [name for name in self.environ.get("PDCTL_TEST_PATCHES", "").split(",") if name]
        return self.with_environ(PDCTL_TEST_STARTUP=str(recipe.PATCHES), PDCTL_TEST_PATCHES=",".join([*before, *names]))

    def over_nixl(self) -> EngineEnv:
        """A copy whose processes have NIXL, over TCP on loopback. Raises `EngineNotInstalledError` where it is missing."""
        if not stamp("nixl").exists():
            raise EngineNotInstalledError(
                "NIXL is not installed for tests: run `python -m tests.engine.install --nixl`"
            )
        return self.with_path(engine_home() / "nixl").with_environ(**_UCX).with_patches("nixl-on-cpu")

    def process_environ(self, extra: Mapping[str, str] | None = None, *, tp: int = 1) -> dict[str, str]:
        """A whole environment for a process of the engine: this one's without Python settings, `environ`, `extra`.

        `tp` is the server's --tp-size, which ``SGLANG_CPU_OMP_THREADS_BIND`` must have as many entries as
        (`sglang.srt.model_executor.model_runner`, `init_threads_binding`, 0.5.10).
        """
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PDCTL_", "SGLANG_", "COV_"))}
        outer.pop("VIRTUAL_ENV", None)
        cores = sorted(os.sched_getaffinity(0))
        bind = "|".join(str(cores[i % len(cores)]) for i in range(tp))
        return {**outer, "SGLANG_CPU_OMP_THREADS_BIND": bind, **self.environ, **(extra or {})}

    @property
    def wrap(self) -> tuple[str, ...]:
        """What to put before a server's command line so that the agent gets in: ``pdctl run`` where there are no plug-ins."""
        return () if recipe.VERSIONS[self.version].plugins else (str(self.python), "-m", "pdctl.cli", "run", "--")

    def server_argv(
        self,
        role: str,
        *,
        port: int,
        tp: int = 1,
        bootstrap_port: int = 30300,
        backend: str = "mooncake",
        extra: Sequence[str] = (),
    ) -> list[str]:
        """Command line of a ``"prefill"`` or ``"decode"`` server, or of an ordinary one for role ``"plain"``.

        All ports lie below the system's ephemeral ones. The engine would look for a free one for its process group by
        itself (an ephemeral one up to 0.5.18), and somebody's connection may have it by the time the group is made.
        """
        argv = [str(self.python), "-m", "sglang.launch_server", "--model-path", str(self.model)]
        argv += [*self.server_args, "--port", str(port), "--nccl-port", str(port + GROUP_PORT), "--tp-size", str(tp)]
        if role != "plain":
            argv += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", backend]
            argv += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
        if role == "decode":
            argv += self.decode_args
        return [*argv, *extra]


_SERVER_ARGS = (
    ("--device", "cpu"),
    ("--host", "127.0.0.1"),
    ("--attention-backend", "torch_native"),
    ("--mem-fraction-static", "0.5"),
    ("--max-total-tokens", "8192"),
    ("--max-running-requests", "32"),
    ("--disable-radix-cache",),
    ("--skip-server-warmup",),
    # Idle schedulers spin otherwise, and the tests share few cores.
    ("--sleep-on-idle",),
)

_UCX = {
    # tcp alone: all stays on loopback, and a server that is killed leaves no shared memory behind
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "UCX_LOG_LEVEL": "warn",
}

_ENVIRON = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_LOCAL_IP_NIC": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
    # The engine must find pdctl as installed, not in the directory that the tests happen to run in.
    "PYTHONSAFEPATH": "1",
}


def engine_env(version: str) -> EngineEnv:
    """The environment of SGLang `version`.

    Raises `EngineNotInstalledError` if it is not completely installed, `KeyError` if there is no recipe for it.
    """
    engine = recipe.VERSIONS[version]
    home = engine_home()
    parts = ["venv", "model"] + ([] if engine is recipe.BASE else [engine.part])
    missing = [part for part in parts if not stamp(part, home).exists()]
    if missing:
        raise EngineNotInstalledError(
            f"SGLang {version} is not installed for tests ({', '.join(missing)} missing in {home}): "
            f"run `python -m tests.engine.install --versions {version}`"
        )
    path = [] if engine is recipe.BASE else [source_of(version)]
    if engine.stub:
        path.append(recipe.STUB)
    env = EngineEnv(
        version=version,
        python=home / "venv" / "bin" / "python",
        model=home / "tiny-llama",
        environ=dict(_ENVIRON),
        server_args=tuple(itertools.chain.from_iterable(_SERVER_ARGS)),
        decode_args=engine.decode_args,
    )
    env = env.with_path(*path)
    return env.with_patches(*engine.patches) if engine.patches else env


def install_pdctl(target: Path, source: Path = ROOT) -> Path:
    """Install pdctl from `source` into the directory `target`, without dependencies, and return `target`.

    On PYTHONPATH, `target` gives the engine both the package and its dist-info, hence the entry point in group
    ``sglang.srt.plugins``. The engine's own environment is left as it is.
    """
    # No build isolation: hatchling comes with pdctl's `test` extra, and a test should not go to a package index.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--upgrade", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"installing pdctl into {target} failed:\n{done.stdout}{done.stderr}")
    return target


@dataclass(frozen=True)
class Namespace:
    """A network namespace with loopback only, or the machine's own network and the `reason` for that."""

    name: str | None
    reason: str | None = None
    prefix: tuple[str, ...] = field(default=())

    @property
    def private(self) -> bool:
        """Whether ports in here are nobody else's."""
        return self.name is not None

    def argv(self, command: Sequence[str]) -> list[str]:
        """`command`, to be run inside."""
        return [*self.prefix, *command]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Moves the calling thread in: sockets it makes, and processes and threads it starts, are inside."""
        if self.name is None:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            inside = os.open(_NAMESPACE_DIR / self.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(inside)
            finally:
                os.close(inside)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)


@contextlib.contextmanager
def loopback_namespace() -> Iterator[Namespace]:
    """A new network namespace with nothing but loopback, removed at exit together with the processes still in it.

    Mooncake and TCPStore listen on wildcard addresses whatever they are told; in here nobody else can reach them, and
    fixed ports can not collide. Where none can be made (not root, no ``ip``), yields one with `reason` set.
    """
    reason = _why_no_namespace()
    if reason is None:
        _remove_orphans()
        name = f"{_NAMESPACE_PREFIX}{os.getpid()}-{next(_counter)}"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        if made.returncode:
            reason = f"`ip netns add` failed: {made.stderr.strip()}"
    if reason is not None:
        yield Namespace(None, reason)
        return
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Namespace(name, None, ("ip", "netns", "exec", name))
    finally:
        _remove_namespace(name)


def _why_no_namespace() -> str | None:
    if os.geteuid() != 0:
        return "not root: servers use this machine's own network"
    if shutil.which("ip") is None:
        return "no `ip` command (package iproute2): servers use this machine's own network"
    return None


def _remove_orphans() -> None:
    """Remove namespaces of test runs that were killed."""
    if not _NAMESPACE_DIR.is_dir():
        return
    for entry in _NAMESPACE_DIR.iterdir():
        match = re.fullmatch(rf"{_NAMESPACE_PREFIX}(\d+)-\d+", entry.name)
        if match and not Path("/proc", match[1]).exists():
            _remove_namespace(entry.name)


def _remove_namespace(name: str) -> None:
    """Kill what still runs in the namespace (schedulers outlive a server that was killed), then remove it."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in map(int, inside.stdout.split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")
