"""The table of what the model-free harness showed of each."""

from __future__ import annotations

import pytest

from tests.engine.versions import PAGE, results, table, with_table

JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest">
<testcase name="test_late_metadata[0.5.23]"/>
<testcase name="test_late_metadata[0.5.10.post1]"><failure message="no">why</failure></testcase>
<testcase name="test_an_entry[0.5.23-n against m]"><properties/></testcase>
<testcase name="test_an_entry[0.5.12.post1-n against m]"><skipped message="not there"/></testcase>
<testcase name="test_without_version"/>
<testcase name="test_of_something[decode]"/>
</testsuite></testsuites>
"""


def test_results_are_by_what_a_test_shows_and_by_version() -> None:
    assert results(JUNIT) == {
        "late metadata": {"0.5.23": "passed", "0.5.10.post1": "failure"},
        "an entry (n against m)": {"0.5.23": "passed", "0.5.12.post1": "skipped"},
    }


def test_the_table_has_versions_in_order_and_says_where_a_test_was_not_run() -> None:
    assert table(results(JUNIT)) == [
        "| | 0.5.10.post1 | 0.5.12.post1 | 0.5.23 |",
        "|--|--|--|--|",
        "| late metadata | failure | – | passed |",
        "| an entry (n against m) | – | skipped | passed |",
    ]


def test_the_page_has_a_place_for_it_and_is_the_same_when_it_is_written_again() -> None:
    page = with_table(PAGE.read_text(), results(JUNIT))
    assert "| an entry (n against m) | – | skipped | passed |\n\n<!-- End" in page
    assert with_table(page, results(JUNIT)) == page
    with pytest.raises(ValueError, match="0 places"):
        with_table("nothing", {})
