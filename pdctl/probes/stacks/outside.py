"""Reads a rank's main-thread stack from outside with py-spy, where that is installed and the kernel permits it.

py-spy reads the process's memory and does not stop it (``--nonblocking``); nothing is loaded into the rank, and no locals
are asked for. It is no dependency of pdctl: without it, ranks that do not answer have no stack.
"""

from __future__ import annotations

import shutil
import subprocess

import msgspec

from pdctl.model import Frame
from pdctl.observed import FoundRank
from pdctl.processes import look


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    pid: int = 0
    os_thread_id: int | None = None
    thread_name: str | None = None
    frames: list[_Frame] = []


_decoder = msgspec.json.Decoder(list[_Thread])


def dump(rank: FoundRank, timeout_s: float) -> tuple[Frame, ...]:
    """Return the frames of a rank's main thread, innermost first; nothing where they can't be had, for any reason."""
    command, pid = shutil.which("py-spy") if rank.access is None else None, rank.identity.pid
    if command is None or timeout_s <= 0 or not rank.live or not look(pid).runs_since(rank.identity.proc_start):
        return ()
    arguments = [command, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
        return main_thread(done.stdout, pid) if done.returncode == 0 else ()
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def main_thread(text: bytes, pid: int) -> tuple[Frame, ...]:
    """Return the main thread's frames of what ``py-spy dump --json`` wrote. Raises ValueError for other text.

    py-spy puts a class before a method's name where it can tell it; here, as in a rank's own answer, it is left out.
    """
    threads = _decoder.decode(text)
    main = next((t for t in threads if t.os_thread_id == pid or t.thread_name == "MainThread"), None)
    frames = main.frames if main is not None else []
    return tuple(
        Frame(frame.name.rpartition(".")[2], "/".join(frame.filename.split("/")[-2:]), frame.line) for frame in frames
    )
