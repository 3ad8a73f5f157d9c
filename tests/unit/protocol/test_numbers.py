"""Numbers in texts of others."""

from __future__ import annotations

import pytest

from pdctl.protocol.numbers import PORT, ROOM, whole


@pytest.mark.parametrize(
    ("text", "most", "number"),
    [
        ("0", ROOM, 0), ("65535", PORT, PORT), (str(ROOM), ROOM, ROOM), ("65536", PORT, None), (str(ROOM + 1), ROOM, None),
        ("9" * 5000, ROOM, None), ("", ROOM, None), ("-1", ROOM, None), ("1.5", ROOM, None), ("٣", ROOM, None),
    ],
)  # fmt: skip
def test_a_whole_number_is_digits_within_a_bound(text: str, most: int, number: int | None) -> None:
    assert whole(text, most) == number
