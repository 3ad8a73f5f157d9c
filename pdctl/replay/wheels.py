"""Runs an emitted test on versions of SGLang that are laid over the engine's environment, one after the other.

The environment keeps torch and all that SGLang needs. Only the package itself is another one: its wheel is installed without
dependencies into a directory of its own, which comes first on the path. Nothing in the environment is changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.replay.bisect import NOT_JUDGED, Judged, outcome

TEST = "test_ranks_stay_in_step"
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,63}", re.ASCII)
_MOST = 1 << 20
"""Bytes that are read of what a run or pip prints."""
_RUN = f"""
import json, pathlib, runpy, sys, unittest
import importlib.metadata, importlib.util
kind, text = "passed", ""
try:
    runpy.run_path(sys.argv[1])["{TEST}"](pathlib.Path(sys.argv[2]))
except AssertionError as error:
    kind, text = "assertion", str(error)
except unittest.SkipTest as error:
    kind, text = "skipped", str(error)
except BaseException as error:
    kind, text = "error", f"{{type(error).__name__}}: {{error}}"
try:
    found = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    found = ""
spec = importlib.util.find_spec("sglang")
place = str(spec.origin or "") if spec is not None else ""
print(json.dumps({{"kind": kind, "text": text[:20000], "version": found, "place": place}}))
"""


def is_version(text: str) -> bool:
    """Return whether ``text`` can be a version of a wheel; anything else must be a directory."""
    return _VERSION.fullmatch(text) is not None


def engine_python(path: Path) -> str:
    """Return the interpreter at ``path``. Raises PdctlError (USAGE) if it does not start."""
    named = str(path.absolute()) if os.sep in str(path) else shutil.which(path) or str(path)
    try:
        done = subprocess.run([named, "-c", "print(1)"], capture_output=True, timeout=60, check=False, cwd="/")
        why = "" if done.stdout.strip() == b"1" else f"it exits with {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(getattr(error, "strerror", "") or "it does not answer")
    if why:
        raise PdctlError(f"{path} is no Python: {why}", "Name the Python of the engine: --python PATH.", Exit.USAGE)
    return named


def run(python: str, test: Path, engine: str, keep: Path | None, limit_s: float) -> Judged:
    """Return what the test says on ``engine``: a version, or a directory with the package ``sglang``.

    keep: where wheels are installed to stay; None: somewhere that is removed afterwards. limit_s: for one run, and for one
    installation. A version that can't be installed or run is NOT_JUDGED, with the reason.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pdctl-bisect-") as scratch:
        where, source = Path(engine).absolute(), engine
        if is_version(engine):
            where = (keep.absolute() if keep is not None else Path(scratch)) / f"sglang-{engine}"
            source, why = _install(python, engine, where, limit_s)
            if why:
                return Judged(engine=engine, outcome=NOT_JUDGED, text=why, seconds=_since(began))
        said = _tested(python, test, where, Path(scratch) / "run", limit_s)
        found, text = outcome(said["kind"], said["text"])
        if said["place"] and not Path(said["place"]).resolve().is_relative_to(where.resolve()):
            found, text = NOT_JUDGED, f"SGLang was loaded from {said['place']} instead"
        if is_version(engine) and said["version"] not in ("", engine):
            found, text = NOT_JUDGED, f"SGLang {said['version']} was loaded instead"
        size = sum(file.stat().st_size for file in where.rglob("*") if file.is_file() and not file.is_symlink())
        return Judged(
            engine=engine, outcome=found, text=text, source=source, mib=round(size / 2**20, 1), seconds=_since(began)
        )


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def _install(python: str, version: str, where: Path, limit_s: float) -> tuple[str, str]:
    """Install the wheel of ``version`` into ``where``, unless it is there. Return where it came from, and what went wrong."""
    if (where / "sglang").is_dir():
        return f"{where}, kept from before", ""
    part = where.with_name(where.name + ".part")
    report = where.with_name(where.name + ".json")
    where.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)  # what a pip left that was ended
    command = [python, "-m", "pip", "install", "--no-deps", "--no-compile", "--disable-pip-version-check", "--quiet"]
    command += ["--target", str(part), "--report", str(report), f"sglang=={version}"]
    code, text = _bounded(command, dict(os.environ), limit_s)
    if code or not (part / "sglang").is_dir():
        lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines()[-1:]
        return "", f"pip could not install sglang=={version}: {lines[-1] if lines else f'exit {code}'}"[:300]
    part.rename(where)
    try:
        came = json.loads(report.read_bytes())["install"][0]["download_info"]
        name = str(came["url"]).rpartition("/")[2]
        return f"{name}, downloaded by pip, sha256 {str(came['archive_info']['hashes']['sha256'])[:16]}…", ""
    except (OSError, ValueError, LookupError, TypeError):
        return "downloaded by pip", ""
    finally:
        report.unlink(missing_ok=True)


def _tested(python: str, test: Path, where: Path, folder: Path, limit_s: float) -> dict[str, str]:
    folder.mkdir()
    inherited = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]  # noqa: PTH100
    path = os.pathsep.join([str(where), *inherited])
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PDCTL_")}
    env = {**outer, "PYTHONPATH": path, "PDCTL_AGENT": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    code, text = _bounded([python, "-c", _RUN, str(test), str(folder)], env, limit_s)
    try:
        said = json.loads(text.strip().rpartition("\n")[2])
        return {name: str(said[name]) for name in ("kind", "text", "version", "place")}
    except (ValueError, LookupError, TypeError):
        last = text.strip().rpartition("\n")[2]
        return {"kind": "error", "text": last or f"it ended with {code} and said nothing", "version": "", "place": ""}


def _bounded(command: Sequence[str], env: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Run a command in a session of its own. Return its exit code (-1: over the limit) and the end of what it printed."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(max(0, out.seek(0, os.SEEK_END) - _MOST))
        text = out.read().decode(errors="replace")
    return code, text if code != -1 else f"it did not end within {limit_s:g} s"
