"""Records docs/notebooks/s1.pdtrace, the trace that docs/notebooks/s1.md works with.

    python -m tools.gen_s1

A lab without the metadata gate; a few requests, then one whose metadata comes late on decode tp1. Its rooms, times and
process ids are others every time: the page's text and output are to be brought in step (tools.gen_notebooks) after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "notebooks" / "s1.pdtrace"


def main() -> int:
    """Exit status: 0 when the trace is there and diverges."""
    with tempfile.TemporaryDirectory(prefix="pds-") as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
        env |= {"PDCTL_RUN_DIR": f"{folder}/run", "PDCTL_RECORD_DIR": f"{folder}/rec", "PDCTL_RECORD_SIZE": "262144"}

        def pdctl(*arguments: str, code: int = 0) -> None:
            done = subprocess.run([sys.executable, "-m", "pdctl.cli", *arguments], env=env, check=False)
            if done.returncode != code:
                raise SystemExit(f"pdctl {' '.join(arguments)} ended with {done.returncode}")

        pdctl("lab", "up", "--name", "s1", "--without", "gate", "--owner", str(os.getpid()))
        try:
            pdctl("lab", "load", "--name", "s1", "--requests", "12", "--concurrency", "3")
            pdctl("inject", "--delay-metadata", "2s", "--rank", "decode:tp1", "--detach")
            pdctl("lab", "load", "--name", "s1", "--requests", "1", "--seconds", "4", code=1)
            pdctl("record", str(TARGET), "--force")
        finally:
            pdctl("lab", "down", "--name", "s1")
        pdctl("diff-queues", "--from", str(TARGET), code=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
