"""What set-up scripts share: a lock between processes, system packages, commands that fail with their output."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

#: Descriptors of the locks held, handed down to the commands that `run` starts.
_held: list[int] = []


class SetupError(Exception):
    """Set-up can not go on; the message says what to do."""


def cache_root() -> Path:
    """Directory for what is installed outside the tree: ``$PDCTL_CACHE``, else ``~/.cache/pdctl``."""
    return Path(os.environ.get("PDCTL_CACHE") or Path.home() / ".cache" / "pdctl")


def say(message: str) -> None:
    """One line about progress, on stderr."""
    print(f"setup: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, waiting for another process that has it.

    If we are killed, the lock goes with the last command that we started: a pip that lives on is not raced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another set-up holds {path}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        _held.append(file.fileno())
        try:
            yield
        finally:
            _held.remove(file.fileno())


def run(command: Sequence[str | Path], **environ: str) -> None:
    """Run `command` without standard input. Raises `SetupError` with the end of its output if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environ},
        pass_fds=_held,
        check=False,
    )
    if done.returncode:
        words = " ".join(str(word) for word in command)
        raise SetupError(f"`{words}` failed with {done.returncode}:\n{done.stdout[-4000:]}")


#: Debian package of each thing that is looked for: a shared library by soname, a program, a Python module.
DEBIAN_PACKAGES = {
    "libcurl.so.4": "libcurl4",
    "libibverbs.so.1": "libibverbs1",
    "libjemalloc.so.2": "libjemalloc2",
    "libnuma.so.1": "libnuma1",
    "librdmacm.so.1": "librdmacm1",
    "liburing.so.2": "liburing2",
    "ip": "iproute2",
    "ensurepip": "python3-venv",
}


def missing_from_system(wanted: Iterable[str]) -> list[str]:
    """Those of `wanted` (keys of `DEBIAN_PACKAGES`) that this machine lacks."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    libraries = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout.split()

    def present(name: str) -> bool:
        if ".so" in name:
            return name in libraries
        if name == "ensurepip":
            return importlib.util.find_spec(name) is not None
        return shutil.which(name) is not None

    return [name for name in wanted if not present(name)]


def ensure_system(wanted: Iterable[str], *, required: bool = True) -> None:
    """Install what this machine lacks of `wanted`, as root on Debian and its kin.

    Elsewhere, says what to install, and raises `SetupError` if it is `required`.
    """
    missing = missing_from_system(wanted)
    if not missing:
        return
    packages = sorted({DEBIAN_PACKAGES[name] for name in missing})
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing {', '.join(packages)}")
        run(["apt-get", "update", "-qq"], DEBIAN_FRONTEND="noninteractive")
        apt = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        run(apt, DEBIAN_FRONTEND="noninteractive")
        missing = missing_from_system(missing)
        if not missing:
            return
    message = f"this machine lacks {', '.join(missing)}; on Debian: apt-get install {' '.join(packages)}"
    if required:
        raise SetupError(message)
    say(message)


#: Seconds after which a package that could not be had is tried again.
TRY_AGAIN_S = 3600.0


def unpacked(package: str) -> Path:
    """Where :func:`ensure_unpacked` puts the files of this Debian package."""
    return cache_root() / "debian" / package


def find_program(name: str, package: str) -> Path | None:
    """The program `name`: the system's own, else that of the unpacked `package`; None where there is neither."""
    mine = unpacked(package) / "usr" / "bin" / name
    found = shutil.which(name) or (mine if mine.exists() else None)
    return Path(found) if found is not None else None


def ensure_unpacked(package: str, program: str) -> None:
    """Unpack a Debian package that has `program`, where it is not there: no service is started, no user made, root not needed.

    It is for tests that are skipped without it, so a failure is said, and tried again after an hour at the earliest.
    """
    place = unpacked(package)
    tried = place.exists() and time.time() - place.stat().st_mtime < TRY_AGAIN_S
    if (
        find_program(program, package) is not None
        or tried
        or not (shutil.which("apt-get") and shutil.which("dpkg-deb"))
    ):
        return
    place.mkdir(parents=True, exist_ok=True)
    os.utime(place)
    say(f"unpacking {package} into {place}")
    try:
        with locked(cache_root() / "debian.lock"), tempfile.TemporaryDirectory() as folder:
            if os.geteuid() == 0:
                run(["apt-get", "update", "-qq"], DEBIAN_FRONTEND="noninteractive")
            run(["env", "-C", folder, "apt-get", "download", "-q", package])
            run(["dpkg-deb", "-x", *Path(folder).glob("*.deb"), place])
    except SetupError as error:
        say(f"{error}\ntests that need {program} are skipped")
