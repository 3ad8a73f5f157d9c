"""Where ``pdctl`` and ``python -m pdctl`` begin: imports little, so that Ctrl-C ends it quietly from the first moment on."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Run ``pdctl``; exits the process."""
    _begin("main")


def kubectl() -> None:
    """Run ``kubectl pdctl``; exits the process."""
    _begin("kubectl")


def _begin(name: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where the caller ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from pdctl import cli

    signal.signal(signal.SIGINT, before)
    getattr(cli, name)()


if __name__ == "__main__":
    main()
