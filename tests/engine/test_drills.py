"""Drills on real servers: late metadata holds where the gate is, and breaks where it is not or was taken out; a request
sent to another prefill dp rank than its room implies ends where the engine checks that, and waits for ever where not.

The requests are the test's own, as an operator's would be: ``--load none``, or a command in a drill file.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import BOOTSTRAP_PORT, DECODE_PORT, PREFILL_PORT, Pair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@contextlib.contextmanager
def traffic(pair: Pair) -> Iterator[list[bool]]:
    """One request after the other as long as the block lasts; whether each was answered."""
    answered: list[bool] = []
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            [outcome] = pair.begin(1, limit_s=60)
            answered.append(outcome().tokens is not None)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        enough.set()


@pytest.mark.parametrize(
    ("version", "environ", "verdict"),
    [
        ("0.5.13.post1", {}, "HOLDS"),
        ("0.5.13.post1", {"PDCTL_REVERT": "gate"}, "BROKEN"),
        ("0.5.12.post1", {}, "BROKEN"),
    ],
)
def test_late_metadata(
    version: str, environ: Mapping[str, str], verdict: str, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    control = ["--control"] if verdict == "BROKEN" else []
    journal = tmp_path / "journal"
    with Pair.start(engine(version, site), namespace, tmp_path, environ=environ) as pair:
        lacks = {rank.identity.role: rank.identity.lacks for rank in pair.ranks()}
        assert lacks == {"prefill": (), "decode": ("gate",) if control else ()}
        with traffic(pair) as answered:
            done = pair.pdctl(
                "drill", "run", "metadata-gate", "--load", "none", "--journal", str(journal), "-o", "json", *control,
                limit_s=300,
            )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}"
        assert done.stdout, said
        document = json.loads(done.stdout)
        assert document["verdict"] == verdict, said
        assert done.returncode == {"HOLDS": 0, "BROKEN": 1}[verdict]
        assert any(answered)
        assert pair.pdctl("faults").returncode == 0
    again = pair.pdctl("drill", "judge", str(journal), "-o", "json")
    assert json.loads(again.stdout)["verdict"] == verdict


MISROUTED = """
name: misrouted
about: a request is sent to another prefill dp rank than its room implies; it must end with the reason, not wait
reference: S4, SGLang PR 22901, fixed in 0.5.11
load: {{command: {command}}}
for: 10s
settle: 20s
expect:
  requests: end
"""


@pytest.mark.parametrize(("version", "verdict"), [("0.5.13.post1", "HOLDS"), ("0.5.10.post1", "BROKEN")])
def test_dp_routing(version: str, verdict: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = engine(version, site)
    ports = [str(port) for port in (PREFILL_PORT, DECODE_PORT, BOOTSTRAP_PORT)]
    command = namespace.argv([sys.executable, str(Path(__file__).with_name("misrouted.py")), *ports])
    drill = tmp_path / "misrouted.yaml"
    drill.write_text(MISROUTED.format(command=json.dumps(list(command))))
    wrap = [] if version != "0.5.10.post1" else [str(env.python), "-m", "pdctl.cli", "run", "--"]
    control = ["--control"] if verdict == "BROKEN" else []
    with Pair.start(env, namespace, tmp_path, decode_tp=1, wrap=wrap, prefill_args=("--dp-size", "2")) as pair:
        assert {rank.identity.label for rank in pair.ranks()} == {
            "prefill dp0 pp0 tp0",
            "prefill dp1 pp0 tp0",
            "decode dp0 pp0 tp0",
        }
        done = pair.pdctl(
            "drill", "run", str(drill), "--journal", str(tmp_path / "j"), "-o", "json", *control, limit_s=300
        )
        said = f"{done.stdout}\n{done.stderr}"
        assert done.stdout, said
        assert json.loads(done.stdout)["verdict"] == verdict, said
