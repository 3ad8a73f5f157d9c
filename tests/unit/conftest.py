"""What every unit test is held to."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def numpy_asks_no_enum() -> Iterator[None]:
    """An array is compared with numbers. Of an enum's member numpy asks its class for attributes, in Python up to 3.11, and
    clears all that comes of it: one Ctrl-C of forty was lost there."""
    asked: list[str] = []
    given = getattr(enum.EnumType, "__getattr__", None)

    def noted(cls: enum.EnumType, name: str) -> object:
        if name.startswith("__array"):
            asked.append(f"{cls.__name__}.{name}")
        if given is None:
            raise AttributeError(name)
        return given(cls, name)

    # Not the test's own monkeypatch: that one, begun here, would be undone after the fixtures of the test.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enum.EnumType, "__getattr__", noted, raising=False)
        yield
    assert asked == []
