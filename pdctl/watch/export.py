"""Look again and again, and keep what was seen for whoever scrapes: over HTTP, in a file of the textfile collector, or once.

A scrape takes the last look's text as it is: it makes no look, and costs the ranks nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import atomic_file, check_target, read_head, sweep_parts
from pdctl.report.escaping import json_encoded
from pdctl.watch import metrics
from pdctl.watch.livez import Liveness
from pdctl.watch.model import WatchState
from pdctl.watch.server import Answer

STALE_S = 30.0
"""A look that is older than this and three intervals tells nothing of now."""
_OURS = b"# HELP pdctl_"
_HELP = b"/metrics  for Prometheus\n/livez    503 where a restart is due: a proven divergence, or a loop that stands\n"
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Page:
    """What one look gave, ready to be sent. at: seconds, on the monotonic clock. due: why a restart is due."""

    at: float = 0.0
    looks: int = 0
    state: WatchState | None = None
    text: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    due: tuple[str, ...] = ()


class Exporter:
    """Makes a page of each look. every_s: how often is looked; stall_s: how long a loop has to stand for ``/livez`` to fail."""

    def __init__(self, *, every_s: float, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.stale_s = STALE_S + 3 * every_s
        self._clock = clock
        self._totals = metrics.Totals()
        self._liveness = Liveness(stall_s)
        self._page = Page()

    def take(self, state: WatchState) -> None:
        """Make the page of this look the one that is sent."""
        self._totals.take(state)
        self._liveness.take(state)
        text, left_out = metrics.look(state, self._totals)
        self._page = Page(self._clock(), self._totals.looks, state, text, left_out, self._liveness.reasons)

    def metrics(self) -> str:
        """Return the text for Prometheus. Without a fresh look it is only that there is none."""
        page = self._page
        up = self._fresh(page)
        own = metrics.own(up=up, state=page.state, looks=page.looks, left_out=page.left_out if up else {})
        return f"{own}{page.text}" if up else own

    def answer(self, path: str) -> Answer | None:
        """Return what a GET of this path gives, None for an unknown one. From any thread."""
        if path == "/metrics":
            return Answer(HTTPStatus.OK, metrics.CONTENT_TYPE, self.metrics().encode())
        if path == "/livez":
            return self._livez()
        return Answer(HTTPStatus.OK, _PLAIN, _HELP) if path == "/" else None

    def _livez(self) -> Answer:
        page = self._page
        if not self._fresh(page):
            return Answer(HTTPStatus.OK, _PLAIN, b"ok, but not judged: no look yet, or the last one is too old\n")
        if page.due:
            body = f"{json_encoded({'restart': page.due})}\n".encode()
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "application/json", body)
        return Answer(HTTPStatus.OK, _PLAIN, b"ok\n")

    def _fresh(self, page: Page) -> bool:
        return page.state is not None and self._clock() - page.at <= self.stale_s


class TextFile:
    """A file of node_exporter's textfile collector: replaced as a whole, for everybody to read."""

    def __init__(self, path: Path) -> None:
        """Check that it may be written. Raises PdctlError (USAGE) where it may not, or is a file of somebody else's."""
        if path.suffix != ".prom":
            raise PdctlError(
                f"{path} does not end with .prom",
                "Give a name that does: the textfile collector reads no other.",
                Exit.USAGE,
            )
        check_target(path, force=True)
        try:
            ours = read_head(path, len(_OURS)) == _OURS
        except FileNotFoundError:
            ours = True
        except OSError as error:
            raise PdctlError(f"{path} {error.strerror}", "Give another name.", Exit.USAGE) from None
        if not ours:
            raise PdctlError(f"{path} exists and was not written by pdctl export", "Give another name.", Exit.USAGE)
        sweep_parts(path)
        self._path = path

    def write(self, text: str) -> None:
        """Replace it. Raises PdctlError (PARTIAL) where it can't be written; what was there stays."""
        with atomic_file(self._path, force=True, mode=0o600) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), 0o644)

    def remove(self) -> None:
        """Remove it: nobody looks any more."""
        self._path.unlink(missing_ok=True)
