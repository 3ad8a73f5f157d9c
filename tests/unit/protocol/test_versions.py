"""Versions of engines, and ranges of them."""

from __future__ import annotations

import pytest

from pdctl.protocol.versions import parse, within
from pdctl.report.findings import catalogue


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("0.5.12.post1", "<0.5.13", True),
        ("0.5.13", "<0.5.13", False),
        ("0.5.13.post1", "<0.5.13", False),
        ("0.5.9", ">0.5.9,<0.5.10.post1", False),
        ("0.5.10", ">0.5.9,<0.5.10.post1", True),
        ("0.5.10.post1", ">0.5.9,<0.5.10.post1", False),
        ("0.5.11", ">=0.5.11,<0.5.19", True),
        ("0.5.18.post2+cu129", ">=0.5.11,<0.5.19", True),
        ("0.5.23", ">=0.5.11,<=0.5.19", False),
        ("0.5.13rc1", "<0.5.13", None),
        ("0.0.0.dev0", "<0.5.13", None),
        ("0.0.0", "<0.5.13", None),
        ("", "<0.5.13", None),
        ("main", "<0.5.13", None),
    ],
)
def test_a_version_is_within_bounds_or_not_or_can_not_be_told(version: str, bounds: str, expected: bool | None) -> None:
    assert within(version, bounds) is expected


def test_what_bounds_nothing_is_an_error() -> None:
    for bounds in ("0.5.13", "<", "<main", ""):
        with pytest.raises(ValueError, match="bounds no versions"):
            within("0.5.12", bounds)


def test_the_bounds_of_the_catalogue_can_be_read() -> None:
    affects = {code: entry.affects for code, entry in catalogue().items() if entry.affects}
    assert affects["PD101"] == "<0.5.13"
    for bounds in affects.values():
        assert within("0.5.12", bounds) is not None
    assert parse("0.5.12.post1") == (0, 5, 12, 0, 0, 1)
