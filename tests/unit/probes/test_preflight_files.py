"""Settings that ``dump config`` saved: one file with both sides, or one each; and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.probes.config.judge import judge
from pdctl.probes.config.model import ConfigDocument, RankSettings
from pdctl.probes.preflight.files import collect
from pdctl.probes.preflight.judge import judge as judge_preflight
from pdctl.protocol.requests import FORCE_QUERY, Settings
from tests.support.identities import identity

VALUES = {
    "disaggregation_bootstrap_port": "8998", "disaggregation_transfer_backend": "mooncake", "dp_size": "1", "pp_size": "1",
    "kv_cache_dtype": "auto", "load_balance_method": "follow_bootstrap_room", "num_hidden_layers": "4", "page_size": "1",
    "served_model_name": "tiny", "speculative_algorithm": "", "tp_size": "1", "kv_item_lens": "8 × 256",
    "aux_item_lens": "2 × 8",
}  # fmt: skip


def saved(
    role: str, values: dict[str, str] | None = None, env: dict[str, str] | None = None, **who: Any
) -> ConfigDocument:
    named = {"service": f"{role}@a", "instance": f"{role}@a/1", "engine": "sglang", "engine_version": "0.5.23", **who}
    body = Settings({**VALUES, **(values or {})}, env or {})
    return judge([RankSettings(identity(role=role, **named), "live", body=body)])


def run(folder: Path, *documents: ConfigDocument, code: int) -> dict[str, Any]:
    files = []
    for number, document in enumerate(documents):
        file = folder / f"{number}.json"
        file.write_bytes(msgspec.json.encode(document))
        files += ["--settings", str(file)]
    done = CliRunner().invoke(app, ["preflight", *files, "-o", "json"])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_file_each_that_fit(tmp_path: Path) -> None:
    document = run(tmp_path, saved("prefill"), saved("decode", cluster="other"), code=0)
    assert (document["way"], document["fit"]) == ("settings", True)
    assert document["pairs"] == ["prefill@a > decode@a"]
    [defects] = [one for one in document["lines"] if one["check"] == "defects"]
    assert (defects["verdict"], defects["found"]) == ("ok", "none of the known ones fits 0.5.23 set up so")


def test_one_file_each_that_do_not_fit(tmp_path: Path) -> None:
    document = run(tmp_path, saved("prefill"), saved("decode", {"page_size": "64"}), code=1)
    assert [one["code"] for one in document["findings"]] == ["PD135"]
    forced = {FORCE_QUERY: "1"}
    document = run(tmp_path, saved("prefill", {"dp_size": "2"}), saved("decode", env=forced), code=1)
    assert [one["code"] for one in document["findings"]] == ["PD123"]
    document = run(tmp_path, saved("prefill"), saved("decode", {"tp_size": "2"}, engine_version="0.5.12.post1"), code=1)
    assert {one["code"] for one in document["findings"]} == {"PD136", "PD172"}


def test_one_side_alone_is_not_enough(tmp_path: Path) -> None:
    document = run(tmp_path, saved("prefill"), code=3)
    assert document["fit"] is None


def test_time_outs_of_ranks_that_told_nothing_are_not_those_of_the_engine(tmp_path: Path) -> None:
    silent = [
        judge([RankSettings(identity(role=role, service=f"{role}@a", instance=role), "live", silence="no answer")])
        for role in ("prefill", "decode")
    ]
    document = run(tmp_path, *silent, code=3)
    assert [one["verdict"] for one in document["lines"] if one["check"] == "time-outs"] == ["unknown"]
    assert [one for one in document["lines"] if one["verdict"] == "ok" and one["check"] != "versions"] == []


def test_servers_that_may_belong_to_several_deployments_are_not_compared(tmp_path: Path) -> None:
    documents = [
        saved("prefill"),
        saved("prefill", {"page_size": "16"}, service="prefill@b", instance="b"),
        saved("decode"),
        saved("decode", {"page_size": "16"}, service="decode@b", instance="db"),
    ]
    document = run(tmp_path, *documents, code=3)
    assert document["findings"] == []
    assert "PDCTL_CLUSTER" in json.dumps(document["lines"])


def test_all_servers_of_a_cluster_with_a_name_are_compared(tmp_path: Path) -> None:
    documents = [
        saved("prefill", cluster="c"),
        saved("decode", cluster="c"),
        saved("decode", {"page_size": "16"}, cluster="c", service="decode@b", instance="db"),
    ]
    document = run(tmp_path, *documents, code=1)
    assert document["pairs"] == ["prefill@a > decode@a", "prefill@a > decode@b"]
    assert [one["about"] for one in document["lines"] if one["verdict"] == "error"] == ["prefill@a > decode@b"]


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"schema": "pdctl.ranks"}', b"[" * 100_000, b"\xff\xfe", b'{"schema": 1}']
)
def test_a_file_without_settings_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text)
    done = CliRunner().invoke(app, ["preflight", "--settings", str(file)])
    assert done.exit_code == 2
    assert "has no settings" in done.output
    assert "Traceback" not in done.output


REAL = Path(__file__).parents[2] / "support" / "real_settings.json"
"""Of a pair of SGLang 0.5.13.post1 on a CPU, as ``dump config -o json`` wrote them: prefill tp1, decode tp2."""
FORCED = {FORCE_QUERY: "1"}
Change = dict[str, Any]


def told(folder: Path, prefill: Change, decode: Change) -> list[tuple[str, str]]:
    """Return check and verdict of what is not well with the real pair, changed so. env: variables; version: the engine's."""
    document = json.loads(REAL.read_text())
    for server in document["servers"]:
        change = {"prefill": prefill, "decode": decode}[server["role"]]
        server["env"] |= change.get("env", {})
        server["version"] = change.get("version", server["version"])
        server["values"] |= {name: value for name, value in change.items() if name not in ("env", "version")}
    file = folder / "a.json"
    file.write_text(json.dumps(document))
    lines = judge_preflight(collect([file], 0.0)).lines
    return [(one.check, one.verdict) for one in lines if one.verdict in ("error", "warning")]


DP2 = {"dp_size": "2", "tp_size": "2", "enable_dp_attention": "True"}


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ({}, {"page_size": "64"}, ("page-size", "error")),
        ({"kv_cache_dtype": "fp8_e5m2"}, {}, ("kv-dtype", "error")),
        ({}, {"num_hidden_layers": "4"}, ("model", "error")),
        ({}, {"aux_item_lens": "8 × 64, 1 × 128, 2 × 512"}, ("metadata-rows", "error")),
        ({}, {"tp_size": "1", "kv_item_lens": "4 × 32"}, ("kv-layout", "error")),
        ({}, {"disaggregation_transfer_backend": "nixl"}, ("transfer", "error")),
        ({}, {"speculative_algorithm": "EAGLE3"}, ("speculative", "error")),
        ({"pp_size": "4"}, {"pp_size": "2"}, ("parallel", "error")),
        ({"tp_size": "3"}, {}, ("parallel", "error")),
        (DP2, {"env": FORCED}, ("routing", "error")),
        ({**DP2, "env": FORCED, "version": "sglang 0.5.18"}, {"env": FORCED}, ("defects", "error")),
        ({}, {"version": "sglang 0.5.12.post1"}, ("defects", "warning")),
        ({"pp_size": "2", "version": "sglang 0.5.12.post1"}, {"version": "sglang 0.5.15"}, ("defects", "warning")),
        ({}, {"env": {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "5"}}, ("time-outs", "warning")),
        ({"env": {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "5"}}, {}, ("time-outs", "warning")),
    ],
)
def test_a_real_pair_with_one_thing_wrong(
    tmp_path: Path, prefill: Change, decode: Change, expected: tuple[str, str]
) -> None:
    assert told(tmp_path, prefill, decode) == [expected]


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({}, {}),
        ({}, {"served_model_name": "chat"}),
        (DP2, {"tp_size": "4", "kv_item_lens": "4 × 16"}),
        ({**DP2, "load_balance_method": "total_tokens", "version": "sglang 0.5.23"}, {"version": "sglang 0.5.23"}),
        ({"pp_size": "2", "kv_item_lens": "2 × 64"}, {}),
    ],
)
def test_a_real_pair_that_fits(tmp_path: Path, prefill: Change, decode: Change) -> None:
    assert told(tmp_path, prefill, decode) == []
