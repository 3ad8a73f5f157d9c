"""Traces that come on standard input and go to standard output."""

from __future__ import annotations

import atexit
import shutil
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.trace.folder import private_folder
from pdctl.trace.manifest import SUFFIX

MOST_BYTES = 16 << 30
_CHUNK = 1 << 20
_held = ExitStack()
atexit.register(_held.close)


@cache
def from_stdin() -> Path:
    """Return a file with all that standard input has; it is removed when this process ends.

    Raises PdctlError: USAGE where standard input is a terminal, UNREACHABLE where it can't be read or kept.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise PdctlError(
            "standard input is a terminal, not a trace",
            "pdctl diff-queues --from - < FILE.pdtrace; a file that is called - is ./-",
            Exit.USAGE,
        )
    path = _held.enter_context(private_folder()) / f"standard-input{SUFFIX}"
    left = MOST_BYTES
    try:
        with path.open("xb") as file:
            while chunk := sys.stdin.buffer.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise PdctlError(f"standard input has more than {MOST_BYTES >> 30} GiB", "Give a file.")
                file.write(chunk)
    except OSError as error:
        raise PdctlError(
            f"standard input can't be read into {path.parent}: {error.strerror or error}",
            "Set TMPDIR to a directory with room.",
        ) from None
    return path


def check_stdout() -> None:
    """Raise PdctlError (USAGE) where standard output is a terminal."""
    if sys.stdout is None or sys.stdout.isatty():
        raise PdctlError(
            "standard output is a terminal, and a trace is no text",
            "pdctl record - > FILE.pdtrace, or pdctl record FILE.pdtrace; a file that is called - is ./-",
            Exit.USAGE,
        )


def to_stdout(path: Path) -> None:
    """Copy the file to standard output. Raises OSError as writing does; BrokenPipeError where its reader is gone."""
    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer, _CHUNK)
    sys.stdout.buffer.flush()
