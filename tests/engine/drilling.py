"""The drill for late metadata on real servers.

Its requests are the test's own, as an operator's traffic would be: ``--load none``.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.engine.harness import Pair


@contextlib.contextmanager
def traffic(pair: Pair) -> Iterator[list[bool]]:
    """One request after the other as long as the block lasts; whether each was answered."""
    answered: list[bool] = []
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            [outcome] = pair.begin(1, limit_s=60)
            answered.append(outcome().tokens is not None)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        enough.set()


def drill_late_metadata(pair: Pair, journal: Path, *, control: bool) -> None:
    """The drill holds where the gate is; as a control it breaks where the gate is not. Its journal says the same again."""
    verdict, code = ("BROKEN", 1) if control else ("HOLDS", 0)
    lacks = {rank.identity.role: rank.identity.lacks for rank in pair.ranks()}
    assert lacks == {"prefill": (), "decode": ("gate",) if control else ()}
    words = ["drill", "run", "metadata-gate", "--load", "none", "--journal", str(journal), "-o", "json"]
    with traffic(pair) as answered:
        done = pair.pdctl(*words, *(["--control"] if control else []), limit_s=200)
    said = f"{done.stdout}\n{done.stderr}"
    assert done.stdout, said
    assert json.loads(done.stdout)["verdict"] == verdict, said
    assert done.returncode == code
    assert any(answered)
    assert pair.pdctl("faults").returncode == 0
    again = pair.pdctl("drill", "judge", str(journal), "-o", "json")
    assert json.loads(again.stdout)["verdict"] == verdict
