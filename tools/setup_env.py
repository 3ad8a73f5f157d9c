"""Makes ``.venv``: what the project's checks and tests run in. A second call is instant.

Everything but pdctl itself is installed once for all checkouts, into ``~/.cache/pdctl/venv-KEY`` (``$PDCTL_CACHE``
replaces ``~/.cache/pdctl``; the key follows the dependencies, the constraints and the Python). A checkout's ``.venv``
is thin: it sees those packages through a ``.pth`` file and adds its own editable install, so that two checkouts never
disagree about which pdctl is meant.

Usage: ``python3 -m tools.setup_env``, from the root of the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.provision import SetupError, cache_root, ensure_system, ensure_unpacked, locked, run, say

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
EXTRAS = "test,dev,all,mooncake-cpu"
TORCH = "torch==2.13.0"
#: Raise when this script starts to build something different.
REVISION = 1
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Exit status: 0 ready, 1 not, with the reason on stderr."""
    if sys.version_info < (3, 10):  # noqa: UP036 - the one place where an older Python arrives
        say(f"needs Python 3.10 or later, this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
        return 1
    base = cache_root() / f"venv-{base_key()}"
    try:
        ensure_unpacked("prometheus", "prometheus")
        if is_ready(base):
            return 0
        with locked(cache_root() / "setup.lock"):
            ensure_system(["ensurepip"])
            # Without it Mooncake does not load; the lab then says so and moves bytes over plain sockets.
            ensure_system(["libibverbs.so.1"], required=False)
            if not complete(base).exists():
                build_base(base)
            if not is_ready(base):
                build_checkout(base)
    except SetupError as error:
        say(str(error))
        return 1
    return 0


def base_key() -> str:
    """Twelve hexadecimal digits that change whenever the shared packages must be installed anew."""
    digest = hashlib.sha256(f"{REVISION} {sys.version} {base_python()} {TORCH} {EXTRAS}".encode())
    digest.update((ROOT / "constraints.txt").read_bytes())
    digest.update(dependencies())
    return digest.hexdigest()[:12]


def dependencies() -> bytes:
    """What pyproject.toml says of dependencies; where Python has no TOML parser (3.10), all of it."""
    text = (ROOT / "pyproject.toml").read_bytes()
    try:
        import tomllib
    except ImportError:
        return text
    project = tomllib.loads(text.decode())
    wanted = project["project"]["dependencies"], project["project"]["optional-dependencies"], project["build-system"]
    return repr(wanted).encode()


def base_python() -> Path:
    """The interpreter itself, also when this runs in a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable))


def complete(base: Path) -> Path:
    """Stamp of the shared packages, written last: an interrupted installation has none."""
    return base / "complete"


def is_ready(base: Path) -> bool:
    """Whether ``.venv`` belongs to `base` and to the present pyproject.toml."""
    stamp = VENV / "complete"
    return complete(base).exists() and stamp.exists() and stamp.read_text() == checkout_key(base)


def checkout_key(base: Path) -> str:
    """What ``.venv`` was made from. Scripts and entry points are in pyproject.toml too, hence all of it."""
    return f"{base}\n{ROOT}\n{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"


def build_base(base: Path) -> None:
    """Install all packages but pdctl into the new virtual environment `base`."""
    say(f"installing into {base}; the first time takes some minutes")
    shutil.rmtree(base, ignore_errors=True)
    run([base_python(), "-m", "venv", base])
    pip = [base / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    run([*pip, TORCH])
    # pip resolves the extras only together with the package, which then goes again.
    run([*pip, f"{ROOT}[{EXTRAS}]"])
    run([base / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "pdctl"])
    complete(base).touch()


def build_checkout(base: Path) -> None:
    """Make ``.venv`` on top of `base`, or bring the one that is there up to date."""
    say(f"making {VENV}")
    packages = VENV / "lib" / PYTHON / "site-packages"
    python = VENV / "bin" / "python"
    if not packages.is_dir() or subprocess.run([python, "-c", ""], check=False).returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        run([base_python(), "-m", "venv", "--without-pip", VENV])
    shared = base / "lib" / PYTHON / "site-packages"
    (packages / "_shared_packages.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n")
    for script in (base / "bin").iterdir():
        if not script.name.startswith(("python", "activate", "Activate")):
            copy_script(script, VENV / "bin" / script.name, base)
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-e", ROOT])
    (VENV / "complete").write_text(checkout_key(base))


def copy_script(script: Path, target: Path, base: Path) -> None:
    """A Python script is copied to run in ``.venv``; a program (ruff) is linked."""
    target.unlink(missing_ok=True)
    content = script.read_bytes()
    if content.startswith(b"#!"):
        target.write_bytes(content.replace(os.fsencode(base / "bin"), os.fsencode(VENV / "bin"), 1))
        target.chmod(0o755)
    else:
        target.symlink_to(script)


if __name__ == "__main__":
    sys.exit(main())
