"""Connections to ranks of other hosts. Clients that follow one another may share them, so that each rank shakes hands once."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.protocol.rank import FoundRank
    from pdctl.targets.far_lines import FarLine


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
            from pdctl.targets.children import allow_files
            from pdctl.targets.far_lines import FILES, FarLine, new_context  # only where something is remote

            if self._context is None:
                self._context = new_context()
            allow_files(FILES * (len(self._lines) + 1))
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
