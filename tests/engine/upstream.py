"""SGLang's own unit tests, with pdctl's hooks and without: ``make test-upstream FOLDER=…``.

Usage::

    python -m tests.engine.upstream FOLDER [--version 0.5.23]

FOLDER holds test files of SGLang that need no GPU, those of ``test/registered/unit/disaggregation`` of its repository. Each
file is run in a process without hooks, and in one with the hooks of each kind of rank. Prints a table; 1 if a test came out
another way with hooks, or none passed without.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine import recipe
from tests.engine.env import engine_env, engine_home, install_pdctl, loopback_namespace
from tests.engine.install import install
from tests.engine.light.host import LightHost
from tools.provision import SetupError, say

PROGRAM = Path(__file__).parent / "light" / "upstream.py"
RANKS = (("prefill", "Mooncake"), ("decode", "Mooncake"), ("prefill", "Nixl"), ("decode", "Nixl"))
Found = Mapping[str, str]


@dataclass
class Compared:
    """One file. found: how its tests came out without hooks. other: rank → test → how it came out with the hooks of that rank.

    errors: rank → tests in which a hook of that rank met what it does not know, and let it pass.
    """

    file: str
    found: Found
    other: dict[str, dict[str, str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def counts(self) -> tuple[int, int, int]:
        """Return how many tests passed, failed and were skipped without hooks."""
        words = [outcome.split(":")[0] for outcome in self.found.values()]
        return words.count("passed"), words.count("failed"), words.count("skipped")


def differing(without: Found, with_hooks: Found) -> dict[str, str]:
    """Return each test that came out another way with hooks, and that way."""
    every = dict.fromkeys([*without, *with_hooks])
    return {test: with_hooks.get(test, "not run") for test in every if without.get(test) != with_hooks.get(test)}


def compare(host: LightHost, file: Path, folder: Path) -> Compared:
    """Run a file without hooks and with those of each rank. folder: a scratch directory.

    A test that differs is run again both ways, since some of the engine's tests come out by chance.
    """
    compared = Compared(file.name, _run(host, file, folder, RANKS[0], hooks=False)["found"])
    for rank in RANKS:
        told = _run(host, file, folder, rank)
        other = differing(compared.found, told["found"])
        if other:
            again = differing(
                _run(host, file, folder, rank, hooks=False)["found"], _run(host, file, folder, rank)["found"]
            )
            other = {test: outcome for test, outcome in other.items() if test in again}
        name = " ".join(rank)
        if other:
            compared.other[name] = other
        if told["errors"]:
            compared.errors[name] = sorted(told["errors"])
    return compared


def _run(host: LightHost, file: Path, folder: Path, rank: tuple[str, str], *, hooks: bool = True) -> Any:
    """Return what the program wrote. Raises SetupError if it wrote nothing: a run that did not end is no outcome."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch, "out.json")
        places = {}
        for variable, name in (("PDCTL_RUN_DIR", "run"), ("PDCTL_RECORD_DIR", "record")):
            place = Path(scratch, name)
            place.mkdir(mode=0o700)
            places[variable] = str(place)
        env = {**places, "PDCTL_ARM": "1", **({} if hooks else {"PDCTL_AGENT": "off"})}
        done = host.program(Path(scratch), PROGRAM, file, *rank, out, env=env)
        if not out.exists():
            hooked = f"the hooks of {' '.join(rank)}" if hooks else "no hooks"
            said = done.stderr[-2000:] or done.stdout[-2000:]
            raise SetupError(f"{file.name} with {hooked} ended with {done.returncode} and told no outcome: {said}")
        told = json.loads(out.read_text())
    if bool(told["hooks"]) is not hooks:
        raise SetupError(f"hooks were {'not ' if hooks else ''}there: {done.stderr[-2000:]}")
    return told


def table(files: Sequence[Compared]) -> list[str]:
    """Return the lines of what came out."""
    width = max(len(one.file) for one in files)
    lines = [f"{'file':<{width}}  passed  failed  skipped  with hooks"]
    for one in files:
        passed, failed, skipped = one.counts()
        word = "the same" if not one.other else f"{sum(map(len, one.other.values()))} differ"
        lines.append(f"{one.file:<{width}}  {passed:>6}  {failed:>6}  {skipped:>7}  {word}")
    for one in files:
        lines += [
            f"  {test} is {one.found.get(test, 'not run')}; with the hooks of {rank}: {outcome}"
            for rank, other in one.other.items()
            for test, outcome in other.items()
        ]
    passed, failed, skipped = (sum(numbers) for numbers in zip(*(one.counts() for one in files), strict=True))
    unknown = len({(one.file, test) for one in files for tests in one.errors.values() for test in tests})
    lines.append(
        f"{passed} passed, {failed} failed, {skipped} skipped without hooks; in {unknown} a hook met what it does not know"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all the same with hooks, 1 not, or it could not be told."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.engine.upstream", description="SGLang's own tests with hooks"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=max(recipe.VERSIONS, key=recipe.number))
    options = parser.parse_args(arguments)
    files = sorted(options.folder.resolve().glob("test_*.py"))
    if not files:
        say(f"{options.folder} has no test_*.py: give a folder with SGLang's unit tests")
        return 1
    try:
        install([options.version], pytest=True)
        compared = run(options.version, files)
    except (SetupError, AssertionError) as error:
        say(str(error))
        return 1
    print("\n".join(table(compared)))
    return int(any(one.other for one in compared) or not any(one.counts()[0] for one in compared))


def run(version: str, files: Sequence[Path]) -> list[Compared]:
    """Return what each file came to on this version. Raises SetupError."""
    with tempfile.TemporaryDirectory(prefix="pdctl-upstream-") as scratch, loopback_namespace() as ns:
        folder = Path(scratch)
        env = engine_env(version).with_path(install_pdctl(folder / "site"), engine_home() / "pytest")
        with LightHost.start(env, ns, folder / "host.log", "managers.scheduler") as host:
            compared = []
            for file in files:
                say(file.name)
                compared.append(compare(host, file, folder))
            return compared


if __name__ == "__main__":
    sys.exit(main())
