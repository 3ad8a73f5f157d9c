"""The drills whose cause is in their own requests, on real servers: `pdctl` sends them as a router does.

dp-routing: one is pinned to another prefill dp rank than its room implies. pp-orphan: some are given up while they wait
in the bootstrap queue of a prefill server with two pipeline stages.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pdctl.inject.drill.journal import read
from pdctl.inject.drill.records import DURING, LoadLine, Manifest
from tests.engine.conftest import engine
from tests.engine.dp_attention import ARGUMENTS, with_dp_attention
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

CODES = {"HOLDS": 0, "BROKEN": 1}


def drill(pair: Pair, name: str, verdict: str, journal: Path) -> tuple[Manifest, LoadLine, str]:
    """Run a drill with requests of its own; returns its manifest, what came of the load that was the cause, and why."""
    control = ["--control"] if verdict == "BROKEN" else []
    words = ("drill", "run", name, *control, *pair.urls, "--rank-timeout", "10", "-o", "json")
    journals = (journal.with_name(f"{journal.name}.{number}") for number in itertools.count())

    def decided() -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path] | None:
        """A drill whose cause must come between two of the engine's rounds shows nothing where it did not: it is run again."""
        file = next(journals)
        done = pair.pdctl(*words, "--journal", str(file), limit_s=200)
        assert done.stdout, done.stderr
        told = json.loads(done.stdout)
        return None if told["verdict"] == "INCONCLUSIVE" else (done, told, file)

    done, told, journal = until(f"{name} shows something", decided, 300)
    assert (told["verdict"], done.returncode) == (verdict, CODES[verdict]), f"{told}\n{done.stderr}"
    again = pair.pdctl("drill", "judge", str(journal), "-o", "json")
    assert json.loads(again.stdout) == told
    records = read(journal)
    [during] = [record for record in records if isinstance(record, LoadLine) and record.step == DURING]
    assert isinstance(records[0], Manifest)
    return records[0], during, str(told["reason"])


@pytest.mark.parametrize(("version", "verdict"), [("0.5.10.post1", "BROKEN"), ("0.5.13.post1", "HOLDS")])
def test_dp_routing(version: str, verdict: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = with_dp_attention(engine(version, site), tmp_path)
    arguments = (*ARGUMENTS, "--load-balance-method", "follow_bootstrap_room")
    with Pair.start(env, namespace, tmp_path, prefill_tp=2, decode_tp=1, prefill_args=arguments, wrap=env.wrap) as pair:
        assert {"prefill dp0 pp0 tp0", "prefill dp1 pp0 tp0"} <= {rank.identity.label for rank in pair.ranks()}
        # a first request may take half a minute
        assert all(pair.begin(1, first_room=room)[0]().tokens for room in (8, 9))
        manifest, during, _ = drill(pair, "dp-routing", verdict, tmp_path / "journal")
        assert manifest.servers.endswith("bootstrap 127.0.0.1:30300")
        assert (during.sent, during.misrouted, during.completed) == (1, 1, 0)
        if verdict == "HOLDS":
            assert during.ended == DURING
            # The engine says why in its log; of what it answers only the beginning is kept.
            assert any(error.startswith("prefill: ") for error in during.errors), during
            assert "follow_bootstrap_room conflict" in pair.servers[0].log.read_text(errors="replace")
        else:
            assert during.unfinished == 1
        # What the drill gave up was ended on the servers, too, and harms nobody.
        [outcome] = pair.generate(1, first_room=8)
        assert outcome.tokens, outcome
        until("nothing is left", lambda: not any(pair.queued("prefill.bootstrap").values()), 30)


@pytest.mark.parametrize(("version", "verdict"), [("0.5.12.post1", "BROKEN"), ("0.5.13.post1", "HOLDS")])
def test_pp_orphan(version: str, verdict: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    arguments = ("--pp-size", "2")
    with Pair.start(engine(version, site), namespace, tmp_path, decode_tp=1, prefill_args=arguments) as pair:
        assert pair.one_by_one(1) != [None]
        _, during, why = drill(pair, "pp-orphan", verdict, tmp_path / "journal")
        # Both requests failed on the first stage, and the client was told.
        assert (during.sent, during.aborted, during.failed) == (2, 2, 2)
        left = pair.queued("prefill.bootstrap")
        assert not left["prefill dp0 pp0 tp0"]
        orphans = left["prefill dp0 pp1 tp0"]
        assert len(orphans) == (verdict == "BROKEN"), why
        assert orphans <= set(during.rooms)
