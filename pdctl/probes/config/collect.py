"""Asks ranks for their settings, and which prefill servers they have dealt with."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.config.model import RankSettings
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.requests import Rooms, Settings
from pdctl.targets.client import Client


def collect(ranks: Sequence[FoundRank], client: Client) -> list[RankSettings]:
    """Return the settings of ``ranks``, in their order."""
    settings = client.ask(ranks, "settings", Settings)
    answering = [answer.rank for answer in settings if answer.body is not None]
    rooms = {id(answer.rank): answer.body for answer in client.ask(answering, "rooms", Rooms)}
    views = []
    for answer in settings:
        known = rooms.get(id(answer.rank))
        views.append(
            RankSettings(
                identity=answer.rank.identity,
                state=answer.rank.state,
                silence="" if answer.body is not None else answer.reason or answer.rank.state,
                body=answer.body,
                prefills=tuple(sorted(known.prefills)) if known is not None else (),
            )
        )
    return views
