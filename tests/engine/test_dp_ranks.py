"""A decode server with data-parallel attention: its dp ranks meet in a collective in each turn, and one of them is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.dp_attention import ARGUMENTS, with_dp_attention
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.engine.troubles import compared, hang_runbook_names, says_first, stays_clean, stopped
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

DP1 = "decode dp1 pp0 tp0"


def agrees(pair: Pair) -> bool:
    status, report, found = compared(pair, "lockstep", "decode")
    assert (status, found) == (0, [])
    return bool(report["verdict"] == "AGREE")


@pytest.mark.parametrize("version", ["0.5.13.post1"])
def test_a_dp_rank_of_decode_that_is_stopped(version: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = with_dp_attention(engine(version, site), tmp_path)
    with Pair.start(env, namespace, tmp_path, decode_tp=2, decode_args=ARGUMENTS) as pair:
        assert all(outcome.tokens for outcome in pair.generate(2, limit_s=180))
        stays_clean(pair)
        until("every loop is seen to turn", lambda: agrees(pair), 60, 0.5)
        pid = pair.rank(DP1).identity.pid
        with stopped(pid):
            found = says_first(pair, ["PD114"])
            assert "loop of decode dp1" in found["summary"]
            assert f"kill -CONT {pid}" in found["next_step"]
            hang_runbook_names(pair, DP1, "lockstep")
        assert all(outcome.tokens for outcome in pair.generate(2, limit_s=180))
        stays_clean(pair)
