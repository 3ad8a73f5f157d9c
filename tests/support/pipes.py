"""Named pipes: who opens one to read waits in the kernel until somebody opens it to write."""

from __future__ import annotations

import os
from pathlib import Path


def opened(pipe: Path) -> bool:
    """Open the pipe to write, and close it: who waits to read from it goes on. Return whether anybody waited."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:  # nobody reads yet
        return False
    return True
