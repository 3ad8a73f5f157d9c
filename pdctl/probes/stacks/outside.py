"""Reads a rank's main-thread stack from outside with py-spy, where that is installed and the kernel permits it.

No locals are asked for, and nothing is said where it can't be had: it is a help with ranks that do not answer.
"""

from __future__ import annotations

from pdctl.introspect import interpreter, pyspy
from pdctl.protocol.model import Frame
from pdctl.protocol.processes import look
from pdctl.protocol.rank import FoundRank


def dump(rank: FoundRank, timeout_s: float) -> tuple[Frame, ...]:
    """Return the frames of a rank's main thread, innermost first; nothing where they can't be had, for any reason."""
    pid = rank.identity.pid
    if timeout_s <= 0 or rank.access is not None or not rank.live or not look(pid).runs_since(rank.identity.proc_start):
        return ()
    try:
        command = pyspy.find(pid, interpreter.environments(interpreter.mapped_files(pid)))
        return pyspy.main_thread(command, pid, timeout_s).frames
    except (OSError, pyspy.PySpyError):
        return ()
