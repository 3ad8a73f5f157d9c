"""Builds a release into dist/: sdist, wheel, SBOM, notes and checksums; then tries the wheel. ``make release``.

The wheel is tried in a bare environment of each Python from 3.10 on that is found here, with what pip finds for it. Only that
needs a package index; ``python -m tools.release --no-try`` leaves it out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.provision import SetupError, run, say

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TRACE = ROOT / "docs" / "notebooks" / "s1.pdtrace"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def build(source: Path, target: Path, *kinds: str) -> None:
    """Build ``sdist`` or ``wheel`` from a folder, with the hatchling that is installed here."""
    kind = [word for one in kinds for word in ("-t", one)]
    run(["env", "-C", source, sys.executable, "-m", "hatchling", "build", *kind, "-d", target])


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def same_from_sdist(sdist: Path, wheel: Path) -> None:
    """Build the wheel from the sdist, too. Raises SetupError where that is another one."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder)
        build(Path(folder) / sdist.name.removesuffix(".tar.gz"), Path(folder), "wheel")
        if digest(Path(folder) / wheel.name) != digest(wheel):
            raise SetupError("the wheel that is built from the sdist is another one: something is missing there")


def needed(requires: Iterable[str]) -> Iterator[str]:
    """Yield the normal names of the requirements that hold on this Python without any extra."""
    for requirement in map(Requirement, requires):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def component(about: Any) -> dict[str, Any]:
    """Return the CycloneDX component of a distribution."""
    reference = f"pkg:pypi/{canonicalize_name(about['Name'])}@{about['Version']}"
    licence = about.get("License-Expression")
    licences: dict[str, Any] = {"licenses": [{"expression": licence}]} if licence else {}
    name = {"type": "library", "bom-ref": reference, "name": about["Name"], "version": about["Version"]}
    return {**name, "purl": reference, **licences}


def sbom(wheel: Path) -> dict[str, Any]:
    """Return the CycloneDX 1.6 document: the wheel, and all that it needs without an extra, as it is tested here."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        mine = message_from_bytes(archive.read(name))
    me = component(mine)
    me |= {"type": "application", "hashes": [{"alg": "SHA-256", "content": digest(wheel)}]}
    parts = {"pdctl": me}
    edges: dict[str, list[str]] = {}
    todo = {"pdctl": sorted(needed(mine.get_all("Requires-Dist", ())))}
    while todo:
        name, others = todo.popitem()
        for other in set(others) - set(parts):
            about = distribution(other)
            parts[other] = component(about.metadata)
            todo[other] = sorted(needed(about.requires or ()))
        edges[name] = [parts[other]["bom-ref"] for other in others]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest(wheel))}",
        "version": 1,
        "metadata": {"component": me},
        "components": [parts[name] for name in sorted(parts) if name != "pdctl"],
        "dependencies": [{"ref": parts[name]["bom-ref"], "dependsOn": edges[name]} for name in sorted(edges)],
    }


def interpreters() -> Iterator[Path]:
    """Yield an interpreter of each minor version that runs here: of PATH, else of pyenv or uv."""
    home = Path.home()
    for minor in PYTHONS:
        places = (f".pyenv/versions/{minor}.*", f".local/share/uv/python/cpython-{minor}.*")
        kept = [found for place in places for found in home.glob(f"{place}/bin/python{minor}")]
        for one in filter(None, (shutil.which(f"python{minor}"), *kept)):
            if subprocess.run([one, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
                yield Path(one)
                break
        else:
            say(f"no Python {minor} here: not tried on it")


def tried(python: Path, wheel: Path) -> None:
    """Install the wheel into a bare environment and use it. Raises SetupError with what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        run([python, "-m", "venv", venv])
        run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", wheel])
        own = {"PDCTL_RUN_DIR": f"{folder}/r", "PDCTL_RECORD_DIR": f"{folder}/c", "PATH": f"{venv}/bin:/usr/bin:/bin"}
        for expected, words, part in (
            (0, "--version", wheel.name.split("-")[1]),
            (0, "--help", "diff-queues"),
            (0, "explain PD101", "metadata landed"),
            (0, "schema pdctl.check", "findings"),
            (4, "check", "no ranks found"),
            (1, f"check --from {TRACE}", "PD101"),
        ):
            command = [venv / "bin" / "pdctl", *words.split()]
            done = subprocess.run(command, env=own, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != expected or part not in done.stdout + done.stderr:
                raise SetupError(
                    f"{python.name}: pdctl {words} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
                )
        if not (venv / "share" / "man" / "man1" / "pdctl.1").exists():
            raise SetupError(f"{python.name}: no man page")


def main(arguments: list[str]) -> int:
    """Exit status: 0 built and tried, 1 not, with the reason on stderr."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        build(ROOT, DIST, "sdist", "wheel")
        [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        same_from_sdist(sdist, wheel)
        version = wheel.name.split("-")[1]
        notes = ROOT / "docs" / "releases" / f"{version}.md"
        if not notes.exists():
            raise SetupError(f"{version} has no notes: write {notes.relative_to(ROOT)}")
        shutil.copy(notes, DIST / "NOTES.md")
        (DIST / f"pdctl-{version}.cdx.json").write_text(json.dumps(sbom(wheel), indent=2) + "\n")
        if "--no-try" not in arguments:
            for python in interpreters():
                tried(python, wheel)
                print(f"the wheel works on {python.name}", flush=True)
        files = sorted(file for file in DIST.iterdir() if file.is_file())
        (DIST / "SHA256SUMS").write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    except SetupError as error:
        say(str(error))
        return 1
    print(f"{DIST.relative_to(ROOT)}: {', '.join(sorted(file.name for file in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
