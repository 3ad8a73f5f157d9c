"""The seams of an SGLang that is installed, looked for in its source: found, moved or gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.commands.self_test import wrong
from pdctl.engines.sglang.survey import FOUND, GONE, MOVED, Place, Source, survey
from tests.engine import recipe
from tests.engine.news import changes

UTILS = """
def all_reduce_flags(flags, group): return dist.all_reduce(flags, group=group)
def poll_and_all_reduce(pollers, group): return all_reduce_flags(pollers, group)
class MetadataBuffers:
    def __init__(self):
        self.bootstrap_room = torch.zeros(3)
"""
DECODE = """
class DecodeTransferQueue:
    def __init__(self):
        self.queue = []
    def pop_transferred(self):
        return self._poll()
    def _poll(self):
        return poll_and_all_reduce(self.queue, self.group)
    def resolve(self):
        return all_reduce_flags([1], self.group)
    async def extend(self): ...
class DecodePreallocQueue:
    def _update_handshake_waiters(self):
        return all_reduce_flags([1], self.group), poll_and_all_reduce(self.queue, self.group)
"""
NEW = """
class Handler:
    def pop_bootstrapped(self): ...
def direct(tensor):
    torch.distributed.all_reduce(tensor)
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Place]:
    folder = tmp_path / "sglang" / "srt" / "disaggregation"
    folder.mkdir(parents=True)
    (folder.parent / "managers").mkdir()
    for name, source in (("utils", UTILS), ("decode", DECODE), ("bootstrapping", NEW), ("prefill", "def broken(:\n")):
        (folder / f"{name}.py").write_text(source)
    (tmp_path / "sglang-0.9.1.dist-info").mkdir()
    source = Source(tmp_path)
    assert source.version == "0.9.1"
    return {place.seam if place.seam != "reduction" else place.function: place for place in survey(source)}


def test_what_is_where_it_was_read_is_found(places: dict[str, Place]) -> None:
    place = places["rounds.decode.transfer"]
    assert place == Place(
        "rounds.decode.transfer", FOUND, "disaggregation/decode.py", 5, "DecodeTransferQueue.pop_transferred"
    )
    assert (places["slots"].state, places["slots"].line) == (FOUND, 6)
    assert places["queue.decode.transfer"].state == FOUND
    assert places["events.decode.transfer"].state == FOUND
    assert not wrong(place)


def test_what_is_elsewhere_has_moved(places: dict[str, Place]) -> None:
    place = places["rounds.prefill.bootstrap"]
    assert (place.state, place.file, place.line) == (MOVED, "disaggregation/bootstrapping.py", 3)
    assert wrong(place)


def test_what_is_nowhere_is_gone_and_a_version_may_be_known_that_lacks_it(places: dict[str, Place]) -> None:
    assert places["events.abort"].state == places["gate"].state == GONE
    assert wrong(places["events.abort"])
    assert not wrong(places["gate"])


def test_what_reduces_is_found_by_what_it_calls(places: dict[str, Place]) -> None:
    assert places["DecodeTransferQueue.resolve"].state == FOUND
    assert places["direct"].file == "disaggregation/bootstrapping.py"
    assert "DecodeTransferQueue._poll" not in places


def test_a_method_that_polls_a_queue_is_named_for_what_it_reduces_besides(places: dict[str, Place]) -> None:
    assert places["DecodePreallocQueue._update_handshake_waiters"].state == FOUND
    assert "DecodeTransferQueue.pop_transferred" not in places


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no sglang/srt"):
        Source(tmp_path)


def test_what_a_new_version_changes_is_one_line_a_place() -> None:
    before = [
        Place("gate", FOUND, "u.py", 3, "_gate"),
        Place("commit", FOUND, "d.py", 5, "Q.commit"),
        Place("reduction", FOUND, "d.py", 7, "Q.resolve"),
    ]
    after = [
        Place("gate", FOUND, "u.py", 9, "_gate"),
        Place("commit", MOVED, "e.py", 6, "Q.commit"),
        Place("reduction", FOUND, "d.py", 8, "Q.agree"),
    ]
    assert changes(before, after) == [
        "  commit: moved, now e.py:6 Q.commit; it was found in d.py Q.commit",
        "  reduction Q.resolve: gone, it was in d.py",
        "  reduction Q.agree: new, d.py:8",
    ]


@pytest.mark.parametrize(
    ("version", "like"),
    [
        ("0.5.24", "0.5.23"),
        ("0.5.23", "0.5.22"),
        ("0.5.22.post1", "0.5.22"),
        ("0.5.9", "0.5.10.post1"),
        ("0.6.0", "0.5.23"),
    ],
)
def test_a_version_is_held_against_the_one_before_it(version: str, like: str) -> None:
    assert recipe.before(version).version == like
