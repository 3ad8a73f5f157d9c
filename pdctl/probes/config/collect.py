"""Asks ranks for their settings, and which prefill servers they have dealt with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.probes.config.model import RankSettings

if TYPE_CHECKING:
    from pdctl.probes.view import View


def collect(view: View) -> list[RankSettings]:
    """Return the settings of the view's ranks, in its order."""
    settings = view.settings()
    answering = [answer.rank for answer in settings if answer.body is not None]
    rooms = {id(answer.rank): answer.body for answer in view.rooms(answering)}
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
