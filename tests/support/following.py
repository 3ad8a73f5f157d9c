"""Tell when ``pdctl record --for`` has begun to follow ranks."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.support.patience import until


def followed(process: subprocess.Popen[str]) -> None:
    """Wait until the command has taken SIGTERM over: it follows now."""
    status = Path(f"/proc/{process.pid}/status")

    def caught() -> bool:
        assert process.poll() is None, f"it ended with {process.returncode}: {process.communicate()}"
        [mask] = [int(line.split()[1], 16) for line in status.read_text().splitlines() if line.startswith("SigCgt")]
        return bool(mask >> (signal.SIGTERM - 1) & 1)

    until("what was followed", caught)
