"""Runs a command line of pdctl and returns what it printed: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from pdctl import cli
from pdctl.introspect import ranks
from pdctl.targets.client import RANK_TIMEOUT_S, TIMEOUT_S, Client
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]


class Printed(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def run_here(words: Sequence[str], env: Mapping[str, str], folder: Path) -> Printed:
    """Run ``pdctl words`` in this process, as its console script would: a start of Python costs more than most commands."""
    out, err = _stream(), _stream()
    with (
        _as_console_script(words, env, folder), _patient(),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Printed(code, _text(out), _text(err))


def run_apart(words: Sequence[str], env: Mapping[str, str], folder: Path) -> Printed:
    """Run ``pdctl words`` in a process of its own."""
    program = "import sys; sys.argv[0] = 'pdctl'; from pdctl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=patience(300),
        check=False,
    )
    return Printed(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def _as_console_script(words: Sequence[str], env: Mapping[str, str], folder: Path) -> Iterator[None]:
    argv, main, before, here = sys.argv, sys.modules["__main__"], dict(os.environ), Path.cwd()
    collects = gc.get_threshold()
    try:
        sys.argv = ["pdctl", *words]
        sys.modules["__main__"] = types.ModuleType("__main__")  # Typer takes the name in its usage from there
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        sys.argv, sys.modules["__main__"] = argv, main
        gc.set_threshold(*collects)


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Wait for ranks longer than told by as much as this machine is slower than a quiet one: who answers is not silent."""
    made = Client.__init__

    def init(
        self: Client, *, timeout_s: float = TIMEOUT_S, rank_timeout_s: float = RANK_TIMEOUT_S, **more: float
    ) -> None:
        made(self, timeout_s=patience(timeout_s), rank_timeout_s=patience(rank_timeout_s), **more)

    found = ranks.found_ranks
    with (
        mock.patch.object(Client, "__init__", init),
        mock.patch.object(ranks, "found_ranks", lambda chosen, timeout_s: found(chosen, patience(timeout_s))),
    ):
        yield


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
