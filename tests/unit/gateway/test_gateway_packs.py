"""A gateway packs an answer for who asked for that, and hands it on as it came to others."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pdctl.gateway.door import Question
from pdctl.gateway.service import Service
from pdctl.protocol import wire


@pytest.mark.parametrize("packs", [True, False])
def test_it_packs_for_who_reads_that(packs: bool) -> None:
    answer = wire.encode(wire.Reply(id=3, body=msgspec.Raw(wire.encode(["decode.transfer"] * 50))))
    sent: list[bytes] = []
    sizes: list[int] = []

    def hand(_: Question, payload: bytes) -> bool:
        sent.append(payload)
        return True

    relay = SimpleNamespace(door=SimpleNamespace(answer=hand), answered=lambda _, size, __: sizes.append(size))
    service: Any = SimpleNamespace(_relay=relay, _pace=lambda *_: None, _order=deque())
    client: Any = SimpleNamespace(questions=deque([Question(b"c", "", 1, b"", 0.0, packs=packs)]), owed=0, name=b"c")
    Service._send(service, client, answer, 0.0)
    assert (sent[0] == answer) is not packs
    assert wire.decode_reply(sent[0]) == wire.decode_reply(answer)
    assert sizes == [len(sent[0])]
