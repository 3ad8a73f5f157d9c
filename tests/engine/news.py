"""What a new SGLang changes for pdctl: ``make engine-news``.

Usage::

    python -m tests.engine.news [--version 0.5.24] [--source-only]

Downloads that version (default: the newest one), holds its source against the last one before it that is tested, installs it
beside the others, runs the model-free harness on it and one pair of servers. Prints what changed; 1 if something did that pdctl
needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pdctl.commands.self_test import wrong
from pdctl.engines.sglang.survey import GONE, Place, Source, survey
from tests.engine import recipe
from tests.engine.env import ROOT, engine_env, install_pdctl, loopback_namespace, source_of
from tests.engine.install import install
from tools.provision import SetupError, run, say

PINNED = ("transformers", "xgrammar")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 nothing changed that pdctl needs, 1 something did, or could not be looked at."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.news", description="what a new SGLang changes")
    parser.add_argument("--version", default="", help="default: the newest")
    parser.add_argument("--source-only", action="store_true", help="run nothing of it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdctl-news-") as folder:
        try:
            version = download(options.version, Path(folder))
            bad = compare(version, Path(folder))
            if not options.source_only:
                bad += runs(version, Path(folder))
        except SetupError as error:
            say(str(error))
            return 1
    return 1 if bad else 0


def download(version: str, folder: Path) -> str:
    """Unpack the wheel of ``version`` ("" the newest) into ``folder``, and return its version. Raises SetupError."""
    asked = f"sglang=={version}" if version else "sglang"
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, asked])
    [wheel] = folder.glob("sglang-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return Source(folder).version


def compare(version: str, folder: Path) -> int:
    """Print what moved, went or came since the last tested version; return how many places pdctl does not find any more."""
    known = recipe.before(version, recipe.VERSIONS.values()).version
    install([known])
    before, after = survey(Source(source_of(known))), survey(Source(folder))
    print(f"SGLang {version} against {known}:")
    lines = changes(before, after)
    print("\n".join(lines) or "  no place has changed")
    return sum(map(wrong, after))


def changes(before: Sequence[Place], after: Sequence[Place]) -> list[str]:
    """Return a line for each place whose state, file or function is another one now."""
    was = {_key(place): place for place in before}
    now = {_key(place): place for place in after}
    lines = []
    for key in dict.fromkeys([*was, *now]):
        old, new = was.get(key), now.get(key)
        if new is None:
            lines.append(f"  {key}: gone, it was in {old.file if old else '?'}")
        elif old is None:
            lines.append(f"  {key}: new, {new.file}:{new.line}")
        elif (old.state, old.file, old.function) != (new.state, new.file, new.function):
            where = "" if new.state == GONE else f", now {new.file}:{new.line} {new.function}"
            lines.append(f"  {key}: {new.state}{where}; it was {old.state} in {old.file} {old.function}")
    return lines


def _key(place: Place) -> str:
    return f"{place.seam} {place.function}" if place.seam == "reduction" else place.seam


def engine_of(version: str, folder: Path) -> recipe.EngineVersion:
    """Return how to install ``version``: as the one before it, with the pins of its own metadata."""
    [metadata] = folder.glob("sglang-*.dist-info/METADATA")
    wanted = metadata.read_text(errors="replace").splitlines()
    pins = [line.removeprefix("Requires-Dist: ") for line in wanted if line.startswith("Requires-Dist: ")]
    exact = tuple(pin for pin in pins if pin.split("==")[0] in PINNED and "==" in pin and ";" not in pin)
    like = recipe.before(version)
    kept = tuple(pin for pin in like.pins if pin.split("=")[0].split(">")[0] not in PINNED)
    return replace(like, version=version, pins=(*exact, *kept))


def runs(version: str, folder: Path) -> int:
    """Install the version, run the harness and a pair; return how many of the two failed. Raises SetupError."""
    if version not in recipe.VERSIONS:
        engine = engine_of(version, folder)
        recipe.VERSIONS[version] = engine
        recipe.OVERLAYS = (*recipe.OVERLAYS, engine)
    install([version])
    pins = " ".join(recipe.VERSIONS[version].pins)
    print(f"pins: {pins}", flush=True)
    harness = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/engine/test_light.py", "-k", f"[{version}] or [{version}-"],
        cwd=ROOT,
        env={**os.environ, recipe.NEWS: f"{version} {pins}"},
        check=False,
    )
    print(f"model-free harness: {'ok' if harness.returncode == 0 else 'failed'}")
    return int(harness.returncode != 0) + pair(version, folder)


def pair(version: str, folder: Path) -> int:
    """Start a pair, send requests, have it checked; return 1 where that went wrong, with the reason."""
    from tests.engine.harness import Pair

    env = engine_env(version).with_path(install_pdctl(folder / "site"))
    try:
        with loopback_namespace() as ns, Pair.start(env, ns, folder) as servers:
            unanswered = [one.error for one in servers.generate(4) if one.tokens is None]
            done = servers.pdctl("check")
    except AssertionError as error:
        print(f"pair: {error}")
        return 1
    print(f"pair: {len(unanswered)} of 4 requests unanswered, check exits {done.returncode}\n{done.stdout}")
    return int(bool(unanswered) or done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
