"""The options of the command line that select where to look for ranks, and the environment built from them.

A frozen value. It is made once from the options before a command, and passed down: nothing writes ``os.environ``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from pdctl.targets.places import Places
    from pdctl.targets.pods import PodQuery


@dataclass(frozen=True)
class Reach:
    """The options of the same names, as they were given; "", () or None for one that was not.

    pods: those that ``kubectl pdctl`` looks into.
    """

    context: str = ""
    endpoints: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    server_key: str = ""
    key: str = ""
    run_dir: Path | None = None
    record_dir: Path | None = None
    hosts: tuple[str, ...] = ()
    via: str = ""
    pods: PodQuery | None = None

    def at(self, run_dir: Path | None, record_dir: Path | None) -> Reach:
        """Return the same with these directories."""
        return replace(self, run_dir=run_dir, record_dir=record_dir)

    def over(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with what was given put over it, directories as absolute paths."""
        given = {
            "PDCTL_CONTEXT": self.context,
            "PDCTL_ENDPOINT": " ".join(self.endpoints),
            "PDCTL_STORE": " ".join(self.stores),
            "PDCTL_HOSTS": " ".join(map(_absolute_file, self.hosts)),
            "PDCTL_VIA": self.via,
            "PDCTL_SERVER_KEY": self.server_key,
            "PDCTL_KEY": self.key,
            "PDCTL_RUN_DIR": _absolute(self.run_dir),
            "PDCTL_RECORD_DIR": _absolute(self.record_dir),
        }
        return {**environ, **{name: value for name, value in given.items() if value}}

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return :meth:`over` ``environ``, with the places and keys of the chosen context where neither has its own.

        Raises PdctlError (USAGE) for a context that is not saved.
        """
        from pdctl.targets.contexts import environment  # not before a command looks for ranks

        return environment(self.over(environ))

    def for_commands(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return :meth:`environment` for commands that are started to look at the same ranks.

        Raises PdctlError (USAGE) for pods: such a command would look at this host.
        """
        if self.pods is not None:
            raise PdctlError(
                "this takes commands of its own, which do not reach pods from here",
                "kubectl pdctl record FILE.pdtrace, then pdctl bundle --from FILE.pdtrace; or run it in the pod.",
                Exit.USAGE,
            )
        return self.environment(environ)

    def places(self, environ: Mapping[str, str] = os.environ) -> Places:
        """Return where ranks are looked for. Raises PdctlError (USAGE) for an invalid value, or a context that is not saved."""
        from pdctl.targets.places import parse_places

        found = parse_places(self.environment(environ), pods=self.pods is not None)
        return found if self.pods is None else found.only_pods(self.pods)

    def forbid_faults(self, environ: Mapping[str, str] = os.environ) -> None:
        """Return where the chosen context allows faults. Raises PdctlError (REFUSED) where it says ``inject = "never"``."""
        from pdctl.targets.contexts import forbid_faults

        forbid_faults(self.over(environ))


def _absolute_file(hosts: str) -> str:
    """Return ``@FILE`` with its whole path: a command that is started may be in another folder."""
    return f"@{Path(hosts[1:]).absolute()}" if hosts.startswith("@") and len(hosts) > 1 else hosts


def _absolute(path: Path | None) -> str:
    return "" if path is None else os.fspath(path.absolute())
