"""What every test relies on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.support import apart
from tests.support.patience import patience

# No test asserts a time, and neither does hypothesis: on a busy machine any example may take long. Its examples are the same
# in each run, so that a change is to blame for what fails; PDCTL_TEST_DRAWS=new draws others, as make test-long does.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=os.environ.get("PDCTL_TEST_DRAWS") != "new",
)
hypothesis.settings.load_profile("any machine")

WORKERS_A_CORE = 3
"""Tests wait for most of their time. With more, all that is asked of a busy machine waits longer, and nothing ends earlier."""

# Tests start pdctl a thousand times: it is compiled once, as where its users have it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

LONGEST_FIRST = (
    "golden", "store", "tcp_hosts", "kubectl", "hosts", "bundle", "watch",
    "fault_survival", "runbooks", "replay", "inject", "dump", "lab", "diff_queues", "record_follow",
    "endpoints", "ranks", "fault_sites_lab", "verify_routing", "inject_agent", "tcp", "fault_bad_input",
    "light_client", "install_moves_nothing", "drills", "standing_in", "outside", "strangers", "stacks", "check", "explore",
    "record", "examples", "agent", "story", "peers", "edges", "stuck", "local_socket", "agents", "lab_switches",
    "loops_stand", "containers", "service_threads", "absence", "clean",
)  # fmt: skip
"""What takes minutes begins first; then the other system tests, whose length nobody wrote down; then unit tests."""

# A shell that started the tests in the background has made them, and all they start, deaf to Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test's own time limit stretches with all other waits."""
    marker = item.get_closest_marker("timeout")
    usual = item.config.getoption("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout") if usual is None else usual)
    item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
    return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first: a worker that begins it last keeps the others waiting."""
    ranks = {f"test_{name}": number for number, name in enumerate(LONGEST_FIRST)}

    def rank(item: pytest.Item) -> int:
        return len(ranks) + 1 if "unit" in item.path.parts else ranks.get(item.path.stem, len(ranks))

    items.sort(key=rank)


# Workers of pytest-xdist are kept apart where this machine can; elsewhere there is one only.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return 0 if apart.why_not() else WORKERS_A_CORE * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if not apart.why_not():
        python = f"{sys.executable} {apart.__file__} {sys.executable}"
        specs[:] = [type(spec)(f"{spec}//python={python}") for spec in specs]
