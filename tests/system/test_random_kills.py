"""The command that placed a fault is killed at random moments of its life: nothing it placed may outlive its lease.

PDCTL_TEST_KILLS: how many moments (20 unless it says otherwise), PDCTL_TEST_SEED: which.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.support.cluster import INJECT, Cluster, every_row_once
from tests.support.patience import until

KILLS = int(os.environ.get("PDCTL_TEST_KILLS", "20"))
SEED = int(os.environ.get("PDCTL_TEST_SEED", "1"))

pytestmark = [pytest.mark.system, pytest.mark.timeout(300 + 20 * KILLS)]


def test_nothing_outlives_a_killed_command(tmp_path):
    cluster, dice = Cluster(tmp_path), random.Random(SEED)
    try:
        cluster.pair("--every", "0.1")
        began = time.monotonic()
        cluster.run(*INJECT, "200ms", "--for", "1s")
        life = time.monotonic() - began  # start-up, placing, a second of beats, healing
        placed = 0
        for number in range(KILLS):
            command = cluster.start(*INJECT, "200ms", "--for", "1s" if number % 2 else "10m")
            time.sleep(dice.uniform(0.2, 1.1) * life)
            if not number % 3:  # killed while it heals after Ctrl-C
                command.send_signal(signal.SIGINT)
                time.sleep(dice.uniform(0.0, 0.15))
            command.kill()
            command.communicate()
            until(f"the end of the fault, kill {number}", lambda: not cluster.faults())
        past = cluster.faults("--past")
        placed = len(past)
        assert placed, "killed every time before a fault was in place"
        every_row_once(cluster)
        done = cluster.run(*INJECT, "100ms", "--hits", "1", "--for", "1m")
        assert done.returncode == 0, "a new fault is taken"
        print(f"{KILLS} kills, {placed} faults still in the rank's history, none left")
    finally:
        cluster.close()
