"""Runs a search as it was asked for: policies and spaces chosen, searched within one time limit, counterexamples written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.render import about, count
from pdctl.explore.space import Space, parse, space_of
from pdctl.protocol import extras
from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from pdctl.explore.document import ExploreDocument
    from pdctl.explore.space import Schedule
    from pdctl.targets.find import Found

AUTO = 10**8
"""Spaces up to this size are searched completely by default."""
MOST = 10**10
"""Spaces up to this size can be searched completely."""
SAMPLE = 10**7
"""Schedules drawn by default from a space that is larger than AUTO."""

CODES = {"BROKEN": Exit.FINDING, "HOLDS": Exit.CLEAN, "INCONCLUSIVE": Exit.PARTIAL}
"""What the command exits with, by verdict."""


@dataclass(frozen=True)
class Search:
    """What was asked. schedules: how many to draw, None to decide by the size of the space. write: a new directory.

    near: how many rounds from where it was recorded something may happen.
    """

    policies: tuple[Policy, ...]
    schedules: int | None = None
    exhaustive: bool = False
    seed: int = 0
    device: str = "cpu"
    limit_s: float = 60.0
    write: Path | None = None
    near: int = 1


def select_policies(names: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies with these names, all of them without a name. Raises PdctlError (USAGE) for an unknown one."""
    for name in names:
        if name not in POLICIES:
            from difflib import get_close_matches

            near = get_close_matches(name, POLICIES, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise PdctlError(f"there is no policy {name!r}", f"{hint}There are: {', '.join(POLICIES)}.", Exit.USAGE)
    return tuple(policy for name, policy in POLICIES.items() if not names or name in names)


def search_model(asked: Search, text: str) -> ExploreDocument:
    """Search the model that ``text`` describes. Raises PdctlError (USAGE, REFUSED) for what can't be searched."""
    try:
        bound = parse(text)
    except ValueError as error:
        raise PdctlError(f"--model: {error}", "For example --model ranks=2,requests=3,rounds=3.", Exit.USAGE) from None
    late = f", arriving within {bound.arrivals}" if bound.arrivals > 1 else ""
    words = f"{bound.ranks} ranks × {count(bound.requests, 'request')} × {count(bound.rounds, 'round')}{late}"
    return _search(asked, [space_of(policy, bound) for policy in asked.policies], words)


def search_near(asked: Search, found: Found, source: str) -> ExploreDocument:
    """Search the schedules near the recordings of ``found``, which come from ``source``.

    Raises PdctlError: PARTIAL where the recordings have no rounds to start from, else as :func:`search_model`.
    """
    import msgspec

    from pdctl.explore.near import as_recorded, policies_for, recorded, space_near
    from pdctl.explore.rules import run as step
    from pdctl.recording.reader import BadRecording, read

    recordings, problems = [], list(found.problems)
    for rank in found.ranks:
        try:
            if rank.recording is not None:
                recordings.append(read(rank.recording))
        except (OSError, BadRecording) as error:
            problems.append(f"{rank.identity.label}: {error}")
    window = recorded(recordings)
    fit = policies_for(window)
    policies = [policy for policy in asked.policies if policy in fit]
    if not policies:
        there = ", ".join(policy.name for policy in fit)
        raise PdctlError(f"no such policy is about {window.queue}", f"There are: {there}.", Exit.USAGE)
    bound = f"{window.text}; everything up to {count(asked.near, 'round')} earlier or later"
    document = _search(asked, [space_near(policy, window, asked.near) for policy in policies], bound)
    results = tuple(
        msgspec.structs.replace(result, as_recorded=bool(step(policy, as_recorded(policy, window)).splits))
        for policy, result in zip(policies, document.results, strict=True)
    )
    return msgspec.structs.replace(document, results=results, source=source, problems=tuple(problems))


def _search(asked: Search, spaces: list[Space], bound: str) -> ExploreDocument:
    """Search every space within the time limit that they share. Raises PdctlError (USAGE, REFUSED, UNREACHABLE)."""
    amounts = [_amount(asked, space) for space in spaces]
    _check_device(asked.device)
    if asked.write is not None:
        _make_folder(asked.write)
    from pdctl.explore.document import ASSUMES, ExploreDocument, explored, worst
    from pdctl.explore.search import search

    ends = time.monotonic() + asked.limit_s
    results = []
    for n, (space, amount) in enumerate(zip(spaces, amounts, strict=True)):
        limit = max(0.0, ends - time.monotonic()) / (len(spaces) - n)
        try:
            found = search(space, schedules=amount, seed=asked.seed, device=asked.device, limit_s=limit)
        except RuntimeError as error:  # torch's: out of the device's memory, or the device is gone
            why = str(error).splitlines()[0]
            raise PdctlError(f"{asked.device}: {why}", "Use --device cpu.", Exit.UNREACHABLE) from None
        results.append(explored(space, found, lambda *what: _write(asked.write, *what)))
    machines = dict.fromkeys(space.policy.machine for space in spaces)
    return ExploreDocument(
        verdict=worst(tuple(results)),
        bound=bound,
        device=asked.device,
        seed=asked.seed,
        results=tuple(results),
        assumes=tuple(line for machine in machines for line in ASSUMES[machine]),
    )


def _amount(asked: Search, space: Space) -> int | None:
    """Return how many schedules to draw, None to try all."""
    if asked.exhaustive and space.size > MOST:
        raise PdctlError(
            f"{space.policy.name}: {about(space.size)} schedules are too many to try all (at most {MOST:,})",
            f"Fewer rounds, requests or ranks, or some of them: --schedules {SAMPLE}.",
            Exit.REFUSED,
        )
    if asked.schedules is None and not asked.exhaustive and space.size > AUTO:
        return SAMPLE
    return asked.schedules


def _check_device(device: str) -> None:
    extras.require("replay", "a search")
    import torch

    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()) or (kind == "cpu" and number):
        raise PdctlError(f"there is no device {device!r}", "cpu, cuda or cuda:N.", Exit.USAGE)
    if kind == "cpu":
        return
    if not torch.cuda.is_available():
        why = "no CUDA device" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise PdctlError(f"--device {device}: {why}", "Use --device cpu: the result is the same.", Exit.USAGE)
    if int(number or 0) >= torch.cuda.device_count():
        raise PdctlError(
            f"--device {device}: there are {torch.cuda.device_count()} CUDA devices", "They count from 0.", Exit.USAGE
        )


def _make_folder(folder: Path) -> None:
    """Make the directory that counterexamples go to before the search: nothing is lost at its end."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise PdctlError(
            f"{folder} can't be made: {error.strerror}", "Name a directory that is not there yet.", Exit.USAGE
        ) from None


def _write(folder: Path | None, policy: Policy, schedule: Schedule, way: str) -> str:
    """Write a counterexample as a trace into ``folder`` and return its path, "" without a folder."""
    if folder is None:
        return ""
    from pdctl.explore.recordings import write
    from pdctl.trace.manifest import new
    from pdctl.trace.writer import member_of, write_trace

    target = folder / f"{policy.name}-{way}.pdtrace"
    with TemporaryDirectory(prefix="pdctl-") as scratch:
        ranks = Path(scratch) / "ranks"
        write(policy, schedule, ranks)
        members = [member_of(path.read_bytes()) for path in sorted(ranks.iterdir())]
    write_trace(target, members, new(f"a counterexample to {policy.name}"))
    return str(target)
