"""Structs are decoded from several threads at once, in the CLI as in a rank."""

from __future__ import annotations

import subprocess
import sys


def test_many_threads_may_be_the_first_to_decode_a_type() -> None:
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.support.first_uses"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "through", "")
