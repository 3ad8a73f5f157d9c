"""Two aids for a process whose agent can't answer: permission to read it, and stacks on a signal.

Neither changes the engine's behaviour: the signal is used only if nothing else in the process uses it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import IO

STACKS_SIGNAL = "PDCTL_STACKS_SIGNAL"
READERS = "PDCTL_READERS"
_DEFAULT = "SIGUSR1"
_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


def allow_readers(env: Mapping[str, str]) -> None:
    """Let other processes of the same user read this one, although Yama would allow it to ancestors only.

    PDCTL_READERS=off changes nothing. Without Yama the kernel refuses the call, and nothing depends on it.
    """
    if env.get(READERS, "").strip().lower() not in ("0", "off", "no", "false"):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)


class Stacks:
    """Append the stacks of all threads to ``path`` on a signal. C code does this, without the GIL.

    The signal is SIGUSR1, or the one that PDCTL_STACKS_SIGNAL names; ``off`` for none. off: why it is off, "" while it is on.
    """

    def __init__(self, path: Path, env: Mapping[str, str]) -> None:
        self.path = path
        self.name = env.get(STACKS_SIGNAL, "").strip() or _DEFAULT
        self.off = ""
        self._file: IO[bytes] | None = None
        self._number = 0
        try:
            self._start()
        except (OSError, ValueError, RuntimeError) as error:
            self.off = str(error)

    def _start(self) -> None:
        if self.name.lower() in ("0", "off", "no", "false"):
            self.off = f"switched off ({STACKS_SIGNAL}={self.name})"
            return
        found = getattr(signal, self.name.upper(), None)
        if not isinstance(found, signal.Signals) or found in (signal.SIGKILL, signal.SIGSTOP):
            self.off = f"{STACKS_SIGNAL}={self.name} names no signal that can be taken"
            return
        if taken(found):
            self.off = f"{self.name} is in use"
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self.path, flags, 0o600), "wb", buffering=0)
        faulthandler.register(found, file=self._file, all_threads=True, chain=False)
        self._number = found

    def stop(self) -> None:
        """Give the signal back, and remove the file unless stacks were asked for."""
        if self._file is None:
            return
        faulthandler.unregister(self._number)
        empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        self._file = None
        if empty:
            self.path.unlink(missing_ok=True)


def taken(number: int) -> bool:
    """Return whether any code in this process catches, ignores or blocks a signal. True if that is unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        masks = [int(line.split(":")[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:", "SigBlk:"))]
    except (OSError, ValueError, IndexError):
        return True
    return len(masks) != 3 or any(mask >> (number - 1) & 1 for mask in masks)
