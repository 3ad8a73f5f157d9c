"""The command that placed a fault is killed at random moments of its life: nothing it placed may outlive its lease.

PDCTL_TEST_SEED: which moments.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.support.cluster import INJECT, Cluster, every_row_once
from tests.support.patience import until

SEED = int(os.environ.get("PDCTL_TEST_SEED", "1"))

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(4300)])])
def test_nothing_outlives_a_killed_command(cluster: Cluster, kills: int) -> None:
    dice = random.Random(SEED)
    cluster.pair("--every", "0.1")
    began = time.monotonic()
    cluster.run(*INJECT, "200ms", "--for", "1s")
    life = time.monotonic() - began  # start-up, placing, a second of beats, healing
    for number in range(kills):
        command = cluster.start(*INJECT, "200ms", "--for", "1s" if number % 2 else "10m")
        time.sleep(dice.uniform(0.2, 1.1) * life)
        if not number % 3:  # killed while it heals after Ctrl-C
            command.send_signal(signal.SIGINT)
            time.sleep(dice.uniform(0.0, 0.15))
        command.kill()
        command.communicate()
        until(f"the end of the fault, kill {number}", lambda: not cluster.faults())
    placed = len(cluster.faults("--past"))
    assert placed, "killed every time before a fault was in place"
    every_row_once(cluster)
    done = cluster.run(*INJECT, "100ms", "--hits", "1", "--for", "1m")
    assert done.returncode == 0, "a new fault is taken"
    print(f"{kills} kills, {placed} faults still in the rank's history, none left")
