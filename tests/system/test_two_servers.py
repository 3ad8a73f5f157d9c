"""Two servers whose ranks have the same names: requests of one are never drawn under the other."""

from __future__ import annotations

import json

import pytest

from tests.support.tiny_ranks import TinyRanks, patient

pytestmark = pytest.mark.system


def blocks(ranks: TinyRanks) -> dict[str, int]:
    """Return the heading of each rank in ``dump queues``, and how many requests are drawn under it."""
    done = ranks.pdctl("dump", "queues", *patient())
    assert done.returncode == 0, done
    found: dict[str, int] = {}
    heading = ""
    for line in done.stdout.splitlines():
        if line and not line.startswith(" "):
            heading = line.strip()
            found[heading] = 0
        elif "rid-" in line:
            found[heading] += 1
    return found


def test_two_starts_of_one_server(ranks: TinyRanks) -> None:
    ranks.start("--count", 2, TINY_INSTANCE="later", TINY_WORLD="later", TINY_STARTED="2000000000000000000")
    ranks.start("--count", 3, TINY_INSTANCE="sooner", TINY_WORLD="sooner", TINY_STARTED="1000000000000000000")
    assert blocks(ranks) == {"decode dp0 pp0 tp0 · #1": 3, "decode dp0 pp0 tp0 · #2": 2}
    asked = ranks.pdctl("dump", "queues", "-o", "json", *patient())
    document = json.loads(asked.stdout)
    assert {(row["instance"], row["server"]) for row in document["ranks"]} == {("sooner", "#1"), ("later", "#2")}
    held = [row["instance"] for row in document["requests"]]
    assert (held.count("sooner"), held.count("later")) == (3, 2)
    rows = ranks.pdctl("dump", "metadata", *patient()).stdout
    assert sorted(line for line in rows.splitlines() if line.startswith("decode")) == [
        "decode dp0 pp0 tp0 · #1 · tiny 1",
        "decode dp0 pp0 tp0 · #2 · tiny 1",
    ]
    compared = json.loads(ranks.pdctl("diff-queues", "-o", "json", *patient()).stdout)
    assert sorted(group["title"].rpartition(" · ")[2] for group in compared["groups"]) == ["#1", "#2"]


def test_two_servers_with_names_of_their_own(ranks: TinyRanks) -> None:
    ranks.start("--count", 1, TINY_SERVICE="decode a:30000", TINY_INSTANCE="a")
    ranks.start("--count", 2, TINY_SERVICE="decode b:30000", TINY_INSTANCE="b")
    assert blocks(ranks) == {
        "decode dp0 pp0 tp0 · decode a:30000": 1,
        "decode dp0 pp0 tp0 · decode b:30000": 2,
    }


def test_one_server_needs_no_more_than_its_name(ranks: TinyRanks) -> None:
    ranks.start("--count", 1)
    assert blocks(ranks) == {"decode dp0 pp0 tp0": 1}
