"""Runs one file of SGLang's own tests in a process with the hooks of a rank, and writes how each test came out, as JSON.

Run in the engine's environment: ``upstream.py FILE ROLE MANAGER OUT``. The hooks are those of a rank of this role with a KV
manager of this class (``Mooncake``, ``Nixl``), those of faults, too. With PDCTL_AGENT=off there are none, and all else is the
same.

What is the engine's: its classes, whole. What stands in: the constructors of the scheduler, the queues and the manager that
the hooks are put in for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pdctl.agent.core import Agent


class Outcomes:
    """Plug-in of pytest. found: test → ``passed``, ``skipped`` or ``failed: TypeOfException``; the worst of its parts.

    errors: test → hook → exceptions of pdctl's own code in it. Every hook is there again when a test begins.
    """

    def __init__(self, sites: dict[str, Any]) -> None:
        self.found: dict[str, str] = {}
        self.errors: dict[str, dict[str, int]] = {}
        self._sites = sites

    def pytest_runtest_logstart(self) -> None:
        for site in self._sites.values():
            site.on, site.errors = True, 0

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        failed = {name: site.errors for name, site in self._sites.items() if site.errors}
        if failed:
            self.errors[nodeid] = failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known, outcome = self.found.get(report.nodeid, "passed"), _outcome(report)
        if known == "passed" or (known == "skipped" and outcome != "passed"):
            self.found[report.nodeid] = outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.found[report.nodeid] = _outcome(report)


def _outcome(report: Any) -> str:
    if report.outcome != "failed":
        return str(report.outcome)
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash is not None else str(report.longrepr).splitlines()[-1].removeprefix("E ")
    return f"failed: {said.split(':')[0].split('(')[0].strip()}"


def light() -> Any:
    """Return the program that the other light tests run, as a module."""
    spec = importlib.util.spec_from_file_location("light_rank", Path(__file__).with_name("rank.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put_in_hooks(role: str, manager: str, store: Path) -> dict[str, Any]:
    """Start the agent for a scheduler of this role, and return its sites by name. store: a file for the process group."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeTransferQueue
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
    from sglang.srt.managers.scheduler import Scheduler

    rank = light()
    dist.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    scheduler = rank.make_scheduler(role, 0, 1, 8, Scheduler)
    if role == "prefill":
        scheduler.disagg_prefill_inflight_queue = []
        first = scheduler.disagg_prefill_bootstrap_queue = rank.make_queue(PrefillBootstrapQueue, scheduler, 0)
    else:
        scheduler.disagg_decode_transfer_queue = rank.make_queue(DecodeTransferQueue, scheduler, 0)
        first = scheduler.disagg_decode_prealloc_queue = rank.make_queue(DecodePreallocQueue, scheduler, 0)
    home = importlib.import_module(f"sglang.srt.disaggregation.{manager.lower()}.conn")
    kind = getattr(home, f"{manager}KVManager")
    first.kv_manager = kind.__new__(kind)
    first.kv_manager.request_status = {}
    rank.start_agent(scheduler)
    dist.destroy_process_group()  # the tests make their own
    if Agent.current is None:
        return {}
    hooks = Agent.current.adapter.hooks
    if hooks.removed():
        raise RuntimeError(f"hooks that could not be put in: {', '.join(hooks.removed())}")
    return hooks.sites


def main() -> int:
    """Exit status: pytest's."""
    file, role, manager, out = sys.argv[1:]
    said = logging.getLogger("pdctl")  # why it has no agent, where it should have one
    said.setLevel(logging.INFO)
    said.addHandler(logging.StreamHandler())
    sites = put_in_hooks(role, manager, Path(out).with_suffix(".store"))
    outcomes = Outcomes(sites)
    alone = ["-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(Path(file).parent)]
    status = pytest.main(["-q", *alone, file], [outcomes])
    told = {"hooks": sorted(sites), "found": outcomes.found, "errors": outcomes.errors}
    if Agent.current is not None:
        Agent.current.stop()
    Path(out).write_text(json.dumps(told))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
