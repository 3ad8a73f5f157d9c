from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.durations import parse, show


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("0.5s", 0.5), ("2m", 120), ("1m30s", 90), ("1h", 3600), (" 5s ", 5), ("1ms", 0.001)],
)
def test_reads_what_people_write(text, seconds):
    assert parse(text, most_s=3600) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-5s", "negative"),
        ("0s", "zero"),
        ("0.0001ms", "zero or under 1ms"),
        ("", "empty"),
        ("  ", "empty"),
        ("5", "write 500ms"),
        ("five", "write 500ms"),
        ("5 s", "write 500ms"),
        ("5S", "write 500ms"),
        ("1e9s", "write 500ms"),
        ("nan", "write 500ms"),
        ("infs", "write 500ms"),
        ("+5s", "write 500ms"),
        ("٥s", "write 500ms"),
        ("16m", "over the limit of 15m"),
        ("999999999h", "over the limit of 15m"),
        ("99999999999999s", "over the limit of 15m"),
        ("9" * 400 + "s", "over the limit of 15m"),
    ],
)
def test_refuses_with_a_sentence(text, says):
    with pytest.raises(ValueError, match="delay") as refused:
        parse(text, most_s=900, what="delay")
    assert says in str(refused.value)


@given(st.integers(1, 900_000))
def test_what_is_shown_can_be_read_again(milliseconds):
    seconds = milliseconds / 1000
    again = parse(show(seconds), most_s=1e6)
    assert again == pytest.approx(seconds, abs=0.5 if seconds >= 60 else 0.0501)


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        seconds = parse(text, most_s=900)
    except ValueError:  # and nothing else
        return
    assert 0.001 <= seconds <= 900
