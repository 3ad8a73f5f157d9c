"""Reads a bundle or a trace for a report, and judges it as the commands with ``--from`` do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pdctl.probes.check.model import CheckDocument
from pdctl.probes.config.model import ConfigDocument
from pdctl.probes.queues.model import WELL, QueuesDocument, RankView
from pdctl.probes.ranks.judge import RanksDocument
from pdctl.probes.ranks.probe import PROBE as RANKS
from pdctl.probes.run import look
from pdctl.probes.stacks.model import StacksDocument
from pdctl.probes.story.model import RoomStory, StoryDocument
from pdctl.probes.view import View
from pdctl.protocol import structs
from pdctl.protocol.documents import Document
from pdctl.protocol.errors import PdctlError
from pdctl.report import progress
from pdctl.targets.client import Client
from pdctl.targets.find import Found, load_source
from pdctl.targets.nodeset import fold_lines
from pdctl.ticket.model import Case
from pdctl.trace.manifest import WHOLE, Manifest
from pdctl.trace.reader import read_documents, read_manifest

if TYPE_CHECKING:
    from pdctl.replay.heat import Heat

MOST_STORIES = 6
MOST_TOLD = 256
"""Ranks among which a report tells a story itself: all clocks are compared for it."""
MOST_HEATS = 16
MOST_VIEWS = 512
"""Ranks whose rounds are drawn."""
HEATS_S = 20.0

D = TypeVar("D", bound=Document)


def gather(path: Path, *, timeout_s: float) -> Case:
    """Return what is known of the bundle or trace at ``path``, looking for ``timeout_s`` seconds.

    What a bundle was told by live ranks goes before what its recordings show. Raises PdctlError (UNREACHABLE) for a file that
    can't be read or has neither recordings nor a check.
    """
    if path.is_dir():
        raise PdctlError(f"{path} is a directory", "pdctl bundle --from DIR makes a file of what is in it.")
    began = time.monotonic()
    manifest = read_manifest(path)
    documents = (
        read_documents(path, _told, timeout_s=timeout_s, spent_s=time.monotonic() - began)
        if manifest.collectors
        else {}
    )
    check = _decoded(documents, "check", CheckDocument)
    found = load_source(path, timeout_s=timeout_s, spent_s=time.monotonic() - began)
    if not found.ranks and check is None:
        raise PdctlError(f"{path} has no recordings", "Give a file that pdctl bundle or pdctl record made.")
    live = check is not None and not check.not_recorded
    ranks = _decoded(documents, "ranks", RanksDocument)
    with Client(timeout_s=timeout_s, spent_s=found.took_s) as client:
        view = View.open(found, client, recorded=True)
        queues = _queues(view)
        if ranks is None and view.ranks:
            ranks = look(RANKS, view, RANKS.options())
        if check is None:
            progress.doing("check")
            check = _check(view)
        rooms = list(dict.fromkeys(room for one in check.findings for room in one.rooms))
        stories, untold = _stories(view, rooms[:MOST_STORIES], documents)
        heats, more = _heats(view, queues)
    return Case(
        name=path.name,
        manifest=manifest,
        check=check,
        live=live,
        ranks=ranks.ranks if ranks is not None else (),
        groups=queues.groups,
        heats=heats,
        more_heats=more,
        stories=stories,
        stacks=_decoded(documents, "stacks", StacksDocument),
        config=_decoded(documents, "config", ConfigDocument),
        unseen=_unseen(manifest, check, found, [*queues.problems, *untold, *_rest(rooms)]),
    )


def _told(name: str) -> bool:
    """Return whether a report has the document of the collector ``name``."""
    return name in ("check", "ranks", "stacks", "config") or name.startswith("story-")


def _decoded(documents: Mapping[str, bytes], name: str, kind: type[D]) -> D | None:
    """Return a document of a bundle, None where it has none that can be true."""
    try:
        return structs.from_json(documents[name], kind) if name in documents else None
    except ValueError:
        return None


def _queues(view: View) -> QueuesDocument:
    from pdctl.probes.queues.probe import PROBE

    progress.doing("diff-queues")
    if not view.ranks:
        return QueuesDocument(groups=())
    found: QueuesDocument = look(PROBE, view, PROBE.options())
    return found


def _check(view: View) -> CheckDocument:
    from pdctl.probes.check.probe import PROBE, CheckOptions

    found: CheckDocument = look(PROBE, view, CheckOptions())
    return found


def _stories(
    view: View, rooms: Sequence[int], documents: Mapping[str, bytes]
) -> tuple[tuple[RoomStory, ...], list[str]]:
    """Return the stories of rooms, those of the bundle where it has them, and why some are not told."""
    from pdctl.probes.story.probe import PROBE, StoryOptions

    told: list[RoomStory] = []
    untold: list[str] = []
    for room in rooms:
        found = _decoded(documents, f"story-{room}", StoryDocument)
        many = len(view.ranks) > MOST_TOLD
        why = view.over or f"it takes long with {len(view.ranks)} ranks; pdctl story {room} --from tells it" * many
        if found is None and not why:
            progress.doing(f"story {room}")
            try:
                found = look(PROBE, view, StoryOptions(asked=str(room)))
            except PdctlError as error:
                why = error.message
        if found is None:
            untold.append(f"story of room {room}: {why}")
        else:
            told += found.stories
    return tuple(told), untold


def _rest(rooms: Sequence[int]) -> list[str]:
    more = len(rooms) - MOST_STORIES
    return [f"the stories of {more} more rooms: pdctl story ROOM --from tells each"] if more > 0 else []


def _heats(view: View, queues: QueuesDocument) -> tuple[tuple[Heat, ...], int]:
    """Return the maps of the first groups, those out of step before others; and how many more there are."""
    from pdctl.replay.groups import targets
    from pdctl.replay.heat import heat

    if not view.ranks:
        return (), 0
    progress.doing("rounds")
    wrong = {one.title for one in queues.groups if one.verdict not in WELL}
    views = []
    for rank in view.ranks[:MOST_VIEWS]:
        answer = view.recording(rank, sockets=False)
        views.append(RankView(rank.identity, rank.state, recording=answer.body, recording_off=answer.reason))
    there = [one for one in targets(views) if len(one.recordings) > 1]
    there.sort(key=lambda one: one.title not in wrong)
    until = time.monotonic() + view.left(HEATS_S)
    made: list[Heat] = []
    for one in there[:MOST_HEATS]:
        if time.monotonic() > until:
            break
        made.append(heat(one))
    made.sort(key=lambda one: one.parted < 0)
    return tuple(made), len(there) - len(made)


def _unseen(manifest: Manifest, check: CheckDocument, found: Found, more: Sequence[str]) -> tuple[str, ...]:
    """Return what was not seen, a line each, equal ranks folded."""
    ranks = [f"{one.rank}: its recording is {one.kept}: {one.reason}" for one in manifest.ranks if one.kept != WHOLE]
    known = {"", *(one.reason for one in manifest.ranks)}
    ranks += [f"{one.identity.label}: {one.recording_off}" for one in found.ranks if one.recording_off not in known]
    parts = [f"{one.name}: {one.status}: {one.reason}" for one in manifest.collectors if one.status != "kept"]
    untold = (f"recordings do not tell of: {', '.join(check.not_recorded)}",) if check.not_recorded else ()
    lines = (*manifest.problems, *ranks, *parts, *check.problems, *found.problems, *more, *untold)
    return tuple(fold_lines(dict.fromkeys(lines)))
