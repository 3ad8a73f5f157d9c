"""What ``pdctl top`` costs the host that it runs on: its screens on a terminal, over a lab under load.

    python -m benchmarks.top [--ranks 16] [--seconds 30] [--columns 200] [--rows 50]

One JSON line: the CPU time of pdctl's process, looks, whole checks and drawing, as a share of a core.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

WARM_S = 15.0
"""Until pdctl has loaded what it needs, and the first whole check is over."""
TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def drain(fd: int, drawn: list[int]) -> None:
    """Read what is drawn, as a terminal does."""
    try:
        while data := os.read(fd, 1 << 16):
            drawn.append(len(data))
    except OSError:
        pass  # it has ended


def measure(env: dict[str, str], options: argparse.Namespace) -> dict[str, object]:
    """Return the share of a core that top takes."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "pdctl", "top"], {**env, "TERM": "xterm-256color"})
    drawn: list[int] = []
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", options.rows, options.columns, 0, 0))
        threading.Thread(target=drain, args=(fd, drawn), daemon=True).start()
        time.sleep(WARM_S)
        before, began, at = cpu_s(pid), time.monotonic(), len(drawn)
        time.sleep(options.seconds)
        used, took, bytes_ = cpu_s(pid) - before, time.monotonic() - began, sum(drawn[at:])
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    return {
        "benchmark": "top", "ranks": options.ranks, "columns": options.columns, "rows": options.rows,
        "share_of_a_core": round(used / took, 4), "bytes_a_second": round(bytes_ / took),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the result; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--rows", type=int, default=50)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdt-") as name:
        env = {**os.environ, "PDCTL_RUN_DIR": f"{name}/run", "PDCTL_RECORD_DIR": f"{name}/rec"}
        lab = [sys.executable, "-m", "pdctl", "lab"]
        size = f"tp={options.ranks // 2}"
        quiet = {"env": env, "stdout": subprocess.DEVNULL}
        subprocess.run([*lab, "up", "--prefill", size, "--decode", size], check=True, **quiet)  # type: ignore[call-overload]
        load = subprocess.Popen([*lab, "load", "-n", "0", "--seconds", "600", "--rate", "2"], **quiet)  # type: ignore[call-overload]
        try:
            print(json.dumps(measure(env, options)))
        finally:
            load.kill()
            load.wait()
            subprocess.run([*lab, "down"], check=False, **quiet)  # type: ignore[call-overload]
    return 0


if __name__ == "__main__":
    sys.exit(main())
