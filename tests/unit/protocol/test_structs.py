"""Structs are decoded from several threads at once, in the CLI as in a rank, and from whatever somebody sends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from pdctl.protocol import structs


class Few(msgspec.Struct):
    number: int = 0


@pytest.mark.parametrize(
    "read",
    [
        lambda: structs.from_json(b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}", Few),
        lambda: structs.from_msgpack(b"\x81\xa1x" + b"\x91" * 9000 + b"\xc0", Few),
        lambda: structs.from_json(b"[" * 9000 + b"]" * 9000, object),
    ],
)
def test_what_is_nested_too_deep_is_wrong_as_anything_else_is(read: Callable[[], object]) -> None:
    with pytest.raises(msgspec.MsgspecError, match="nested too deep"):
        read()


def test_many_threads_may_be_the_first_to_decode_a_type() -> None:
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.support.first_uses"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "through", "")
