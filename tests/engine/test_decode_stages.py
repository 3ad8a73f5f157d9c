"""Servers of two stages on both sides: decode's second stage gets the metadata of one request late, and keeps it.

The stages agree on transfers that ended; the metadata gate is asked only after that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.probes.parting import Recorded, done_by
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.engine.troubles import compared, says_first, stays_clean

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

PP0, PP1 = "decode dp0 pp0 tp0", "decode dp0 pp1 tp0"
STAGES = ("--pp-size", "2")


def lags(pair: Pair) -> list[int]:
    """Return, for each request that both decode stages took on lately, how many turns the second one was behind."""
    took: list[dict[int, int]] = []
    for label in (PP0, PP1):
        recording = pair.recordings()[label]
        done = done_by([(recording.identity, Recorded(recording))])
        took.append({room: did.visit for (at, room), [did] in done.items() if at == "decode.transfer" and did.took})
    return [took[1][room] - visit for room, visit in took[0].items() if room in took[1]]


@pytest.mark.parametrize("version", ["0.5.13.post1"])
def test_a_stage_that_keeps_what_the_other_put_into_its_batch(
    version: str, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    env = engine(version, site)
    with Pair.start(env, namespace, tmp_path, decode_tp=1, prefill_args=STAGES, decode_args=STAGES) as pair:
        assert pair.one_by_one(3) != [None]
        assert len(set(lags(pair))) == 1
        stays_clean(pair)
        assert len(set(lags(pair))) == 1
        status, report, _ = compared(pair, "stages", "decode")
        assert (status, report["verdict"]) == (0, "AGREE")
        done = pair.pdctl("inject", "--delay-metadata", "10m", "--rank", "decode:pp1", "--for", "10m", "--detach")
        assert done.returncode == 0, done.stderr
        pair.begin(1, limit_s=300)
        room = pair.rooms[-1]
        found = says_first(pair, ["PD115"], {room})
        assert f"{PP0} ended it well in round" in found["summary"]
        assert f"{PP1} kept it in round" in found["summary"]
        status, report, _ = compared(pair, "stages", "decode")
        assert (status, report["verdict"], report["queue"]) == (1, "DIVERGED", "decode.transfer")
