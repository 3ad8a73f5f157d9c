"""Runs cases, and holds what they printed against the files."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.golden.cases import CASES, Case, Run
from tests.golden.masks import Masks
from tests.golden.running import Printed, run_here
from tests.golden.worlds import LIVE, MOVING, WORLDS, Place

FILES = Path(__file__).parent / "files"


def path(case: Case) -> Path:
    """Return the file of a case."""
    return FILES / f"{case.name}.txt"


def chosen(names: list[str]) -> list[Case]:
    """Return the cases with one of these names, or whose name begins so; all where there is none."""
    return [case for case in CASES if not names or any(case.name == n or case.name.startswith(n) for n in names)]


def difference(case: Case, seen: str) -> str:
    """Return how ``seen`` differs from the file of a case, as a unified diff; "" where it does not."""
    kept = path(case).read_text() if path(case).exists() else ""
    lines = difflib.unified_diff(kept.splitlines(True), seen.splitlines(True), f"{case.name}.txt", "now")
    return "".join(lines)


class Stage:
    """Has one world at a time; a world that is made of the same start as the one before goes on with it."""

    def __init__(self, run: Callable[..., Printed] = run_here) -> None:
        self._run = run
        self._started = ExitStack()
        self._changed = ExitStack()
        self._world = ""
        self._place: Place | None = None

    def __enter__(self) -> Stage:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        self._changed.close()
        self._started.close()

    def _at(self, name: str) -> Place:
        world, before = WORLDS[name], WORLDS.get(self._world)
        if self._place is None or name != self._world:
            self._changed.close()
            if self._place is None or before is None or before.base is not world.base or world.then is None:
                self._started.close()
                self._place = self._started.enter_context(world.base())
            if world.then is not None:
                self._changed.enter_context(world.then(self._place))
            self._world = name
        return self._place

    def seen(self, case: Case) -> str:
        """Run a case and return what its file should hold."""
        place = self._at(case.world)
        masks = Masks(str(place.folder.parent), live=case.world in LIVE, moving=case.world in MOVING)
        return "\n".join(self._block(case, run, place, masks) for run in case.runs(place.words))

    def _block(self, case: Case, run: Run, place: Place, masks: Masks) -> str:
        env = {**place.env, **run.env}
        printed = masks.of(self._run(run.words, env, place.folder), run.form)
        parts = [f"$ {run.shown}", f"exit {printed.code}"]
        for name, text in (("stdout", printed.out), ("stderr", printed.err)):
            lines = text.splitlines(keepends=True)
            if case.brief:
                lines = lines[:1]
            if lines:
                end = "" if lines[-1].endswith("\n") else ", without a line end"
                parts.append(f"--- {name}{end}\n{''.join(lines)}".removesuffix("\n"))
        return "\n".join(parts) + "\n"
