"""One look that probes share: what one has asked another does not ask again, and a second look asks anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pdctl.probes import view as module
from pdctl.probes.asking import MOST_KEPT
from pdctl.probes.check.probe import run
from pdctl.probes.registry import stages
from pdctl.probes.turns import LOST
from pdctl.probes.view import View
from pdctl.protocol.model import Status
from pdctl.protocol.rank import Access, Answer, FoundRank, Silence
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.identities import identity
from tests.support.story_world import World

RANKS = tuple(FoundRank(identity(tp=tp, tp_size=2), "live", endpoint=f"ipc:///nowhere/{tp}") for tp in (0, 1))
OTHERS = tuple(FoundRank(identity(role="prefill", tp=tp), "live") for tp in (0, 1))


class Asked(Client):
    """A client that notes which questions it is asked, of how many ranks at a time, and knows no answer but one."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        super().__init__(timeout_s=60, rank_timeout_s=60)
        self.known = known or {}
        self.questions: list[tuple[str, int]] = []

    def ask_each(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any) -> list[Answer[Any]]:
        self.questions.append((op, len(questions)))
        body = self.known.get(op)
        silence = Silence.NONE if body is not None else Silence.ERROR
        return [Answer(rank, body, silence, "" if body is not None else "unknown") for rank, _ in questions]


def test_each_rank_is_asked_once_and_all_at_the_same_time() -> None:
    client = Asked()
    view = View(Found(RANKS), client)
    first = view.status(RANKS[:1])
    both = view.status()
    assert [answer.rank for answer in both] == list(RANKS)
    assert both[0] is first[0]
    assert view.status() == both
    view.metadata(sums=False)
    view.metadata()
    view.metadata(sums=False)
    assert client.questions == [("status", 1), ("status", 1), ("metadata", 2), ("metadata", 2)]
    view.again().status()
    assert client.questions[-1] == ("status", 2)


def test_ranks_are_told_apart_though_they_are_equal() -> None:
    twins = (RANKS[0], FoundRank(RANKS[0].identity, "live", endpoint=RANKS[0].endpoint))
    answers = View(Found(twins), Asked()).rooms()
    assert [id(answer.rank) for answer in answers] == [id(rank) for rank in twins]


def test_it_has_seen_something_once_anybody_answers_in_it_or_after_it() -> None:
    view = View(Found(RANKS), Asked())
    view.status()
    assert not view.seen
    client = Asked({"queues": object()})
    view = View(Found(RANKS), client)
    view.again().queues()
    assert view.seen


def test_the_stages_of_check_share_what_they_ask() -> None:
    """Each first look is one; only stages that look again ask the same once more."""
    client = Asked()
    list(run(View(Found((*RANKS, *OTHERS)), client), stages(), 0.001))
    counts = Counter(op for op, _ in client.questions)
    assert counts["status"] == 1, "by ranks, queues and stacks"
    assert counts["rooms"] == 2, "by routing, stuck and leaks, and by stuck a pause later"
    assert counts["metadata"] == 1, "by metadata and leaks"
    assert counts["settings"] == 1
    assert all(count == 4 for _, count in client.questions)


def test_a_recording_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    written = [world.rank("decode", tp, tp_size=32, pid=100 + tp) for tp in range(MOST_KEPT + 2)]
    for rank in written:
        rank.path.write_bytes(world.data(rank))
    ranks = tuple(FoundRank(rank.identity, "recorded", recording=rank.path) for rank in written)
    with Client() as client:
        view = View(Found(ranks), client, recorded=True)
        first = [view.recording(rank).body for rank in ranks]
        second = [view.recording(rank).body for rank in ranks]
        of_file = [view.recording(rank, sockets=False).body for rank in ranks]
        assert view.seen
        assert [a is b for a, b in zip(first, second, strict=True)] == [True] * MOST_KEPT + [False] * 2
        assert [a is b for a, b in zip(first, of_file, strict=True)] == [True] * MOST_KEPT + [False] * 2
        assert view.again().recording(ranks[0]).body is first[0]  # nobody writes it any more
        live = FoundRank(ranks[0].identity, "live", recording=ranks[0].recording)
        view = View(Found((live,)), client)
        assert view.again().recording(live).body is not view.recording(live).body


def test_who_answers_while_silent_ones_are_looked_for_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Answer[Status](rank, None, Silence.ERROR, "unknown") for rank in RANKS]
    monkeypatch.setattr(module, "apply_fallback", lambda found, client: (found, answers))
    client = Asked()
    view = View.open(Found(RANKS), client)
    assert view.status() == answers
    assert client.questions == []
    View.open(Found(RANKS), client, asks=False).status()
    assert client.questions == [("status", 2)]


def test_what_is_only_said_to_have_ended_on_another_host_is_no_ending() -> None:
    away = FoundRank(
        identity(host="node1"), "dead", access=Access(), silent=Silence.REFUSED, silent_why="nobody listens"
    )
    view = View(Found((away,)), Asked())
    assert [turn.state for turn in view.turns()] == [LOST]
    assert view.endings().ended == []
    assert view.underlying == ()
