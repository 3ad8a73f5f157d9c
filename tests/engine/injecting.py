"""Faults placed on a pair of real servers through the command line.

They are detached: a busy machine could end a lease, and with it what a test waits for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.engine.harness import Pair
from tests.support.patience import until


class Fault:
    """A fault that ``pdctl inject`` has placed, until it ends or is healed."""

    def __init__(self, pair: Pair, *arguments: str, rank: str = "decode:tp1") -> None:
        self._pair = pair
        done = pair.pdctl("inject", *arguments, "--rank", rank, "--for", "15m", "--detach", "-o", "json")
        assert done.returncode == 0, done.stderr
        self._id = str(json.loads(done.stdout)["fault"])

    def _rows(self) -> list[dict[str, Any]]:
        """Return its row of ``pdctl faults`` for each rank that holds it or did."""
        done = self._pair.pdctl("faults", "--past", "-o", "json")
        assert done.returncode == 0, done.stderr
        return [row for row in json.loads(done.stdout)["faults"] if row["fault"] == self._id]

    def fired(self) -> bool:
        """Whether it has fired."""
        return any(row["fired"] for row in self._rows())

    def ended(self) -> dict[str, int]:
        """Wait until it has ended on every rank; return how often it fired, and how many held rooms it released."""
        rows = until("the fault has ended", lambda: (rows := self._rows()) and all(r["ended"] for r in rows) and rows)
        assert not any(row["failed"] for row in rows), rows
        return {count: sum(row[count] for row in rows) for count in ("fired", "released")}

    def heal(self) -> dict[str, int]:
        """End it; return what :meth:`ended` returns."""
        done = self._pair.pdctl("heal", self._id)
        assert done.returncode == 0, done.stderr
        return self.ended()


@contextlib.contextmanager
def fault(pair: Pair, *arguments: str, rank: str = "decode:tp1") -> Iterator[Fault]:
    """Have a fault in place as long as the block lasts, and no other."""
    try:
        yield Fault(pair, *arguments, rank=rank)
    finally:
        pair.heal()
