"""Ranks of hosts that run pdctl themselves: over ssh, or the command that ``--via`` names."""

from __future__ import annotations

import functools
import math
import time

from pdctl.protocol.rank import FoundRank
from pdctl.targets import bridges
from pdctl.targets.bridge_frames import Settings
from pdctl.targets.places import HOST, OFF, OutsideSetting, Places

_SSH_FAILED = 255


def find(places: Places, timeout_s: float, rank_timeout_s: float, problems: list[str]) -> list[FoundRank]:
    """Return the ranks of the hosts of ``places``, and one row for each host that gives none. They get half of the time."""
    within_s = timeout_s / 2
    settings = settings_of(places, within_s, rank_timeout_s)
    return bridges.open_all(fars(places, within_s), time.monotonic() + within_s, problems, settings)


def settings_of(places: Places, within_s: float, rank_timeout_s: float) -> Settings:
    """Return how far sides look for their ranks, in less than ``within_s``."""
    return Settings(
        run_dir=str(places.run_dirs[0]) if places.run_dir_named else "",
        record_dir=str(places.record_dir) if places.record_dir_named else "",
        outside=_outside(places.outside),
        timeout_s=max(1.0, within_s - 1.0),
        rank_timeout_s=min(rank_timeout_s, within_s / 2),
    )


def fars(places: Places, within_s: float) -> list[bridges.Far]:
    """Return the far side of each host."""
    via = places.via or ssh(within_s)
    of_ssh = via[0] == "ssh"
    return [
        bridges.Far(
            host,
            (*(word.replace(HOST, host) for word in via), "bridge"),
            functools.partial(_explain_ssh, host) if of_ssh else bridges.explain,
        )
        for host in places.hosts
    ]


def ssh(within_s: float) -> tuple[str, ...]:
    """Return the default command. Keys, names and jumps are those of the user's ssh_config; nobody is asked for anything."""
    limit = math.ceil(within_s)
    return ("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={limit}", "--", HOST, "pdctl")


def _explain_ssh(host: str, code: int | None, words: str) -> str:
    said = words.removeprefix("ssh: ")
    if code == _SSH_FAILED:
        return f"ssh can't get there: {said or 'it says nothing'}; ssh {host} true has to work without a question"
    if code is None:
        return f"no answer of ssh in time{f': {said}' if said else ''}; is the host up? ssh -v {host} true tells"
    return bridges.explain(code, words)


def _outside(setting: OutsideSetting) -> str:
    """Return the value of PDCTL_OUTSIDE that says this."""
    if setting == OFF:
        return "off"
    return ",".join(map(str, setting.pids)) if setting.how == "pids" else {"near": ""}.get(setting.how, setting.how)
