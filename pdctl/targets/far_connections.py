"""Connections to ranks of other hosts. Clients that follow one another may share them, so that each rank shakes hands once."""

from __future__ import annotations

import itertools
import resource
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.protocol.rank import FoundRank
    from pdctl.targets.far_lines import FarLine

_SOCKETS = 1 << 14
"""Sockets that a context may have. Each connection takes three: libzmq's own limit would end at 341 ranks."""
_DESCRIPTORS = 1 << 16


class FarConnections:
    """One connection to each rank, made where it is first asked for. numbers: of questions, so that no answer is misread."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self._lines: dict[str, FarLine] = {}
        self._context: Any = None
        """ZeroMQ's, once there is a rank of another host."""

    def __enter__(self) -> FarConnections:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def line(self, rank: FoundRank) -> FarLine:
        """Return the connection to ``rank``, made where there is none. Raises OSError where it can't be made."""
        line = self._lines.get(rank.connection)
        if line is None:
            import zmq  # only where something is remote

            from pdctl.targets.far_lines import FarLine

            if self._context is None:
                self._context = zmq.Context(io_threads=1)
                self._context.set(zmq.MAX_SOCKETS, _SOCKETS)
                soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                if soft < _DESCRIPTORS:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, hard), hard))
            line = self._lines[rank.connection] = FarLine(self._context, rank)
        return line

    def drop(self, connection: str) -> str:
        """Close a connection. Return why it was not established, "" if it was, or if there is none."""
        line = self._lines.pop(connection, None)
        return line.close() if line is not None else ""

    def close(self) -> None:
        """Close all connections. Unanswered questions are dropped."""
        for connection in list(self._lines):
            self.drop(connection)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
