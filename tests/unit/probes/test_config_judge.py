"""Settings side by side: what can't work, and what may differ."""

from __future__ import annotations

import pytest

from pdctl.probes.config.judge import judge
from pdctl.probes.config.model import ConfigDocument, RankSettings
from pdctl.protocol.requests import Settings
from tests.support.identities import identity

BASE = {
    "page_size": "1",
    "kv_cache_dtype": "auto",
    "num_hidden_layers": "4",
    "disaggregation_bootstrap_port": "8998",
    "tp_size": "1",
    "kv_item_lens": "8 × 256",
}


def rank(
    role: str,
    values: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    prefills: tuple[str, ...] = (),
    **who: object,
) -> RankSettings:
    named = {"service": f"{role}@a", "instance": f"{role}@a/1", **who}
    body = Settings({**BASE, **(values or {})}, env or {})
    return RankSettings(identity(role=role, **named), "live", body=body, prefills=prefills)


def codes(document: ConfigDocument) -> list[str]:
    return [found.code for found in document.findings]


def test_what_may_differ_is_shown_and_no_finding() -> None:
    document = judge([
        rank("prefill", {"tp_size": "1"}),
        rank("decode", {"tp_size": "2", "kv_item_lens": "8 × 128"}, {"SGLANG_DISAGG_X": "1"}, tp_size=2),
        rank("decode", {"tp_size": "2", "kv_item_lens": "8 × 128"}, {"SGLANG_DISAGG_X": "1"}, tp_size=2, tp=1),
    ])  # fmt: skip
    assert not document.findings
    verdicts = {s.name: s.verdict for s in document.settings}
    assert verdicts["tp_size"] == "differs"
    assert verdicts["page_size"] == "same"
    assert verdicts["SGLANG_DISAGG_X"] == "differs"
    assert document.servers[0].peers == ("decode@a",)


@pytest.mark.parametrize("name", ["page_size", "kv_cache_dtype", "num_hidden_layers", "kv_item_lens"])
def test_what_can_not_work_is_named_with_what_the_engine_does(name: str) -> None:
    document = judge([rank("prefill"), rank("decode", {name: "other"})])
    assert codes(document) == ["PD135"]
    assert f"{name} is {BASE[name]} on prefill@a and other on decode@a" in document.findings[0].summary
    [setting] = [s for s in document.settings if s.name == name]
    assert setting.verdict == "mismatch"
    assert setting.text


@pytest.mark.parametrize("cause", ["page_size", "kv_cache_dtype", "num_hidden_layers"])
def test_lengths_that_follow_from_another_setting_are_no_finding_of_their_own(cause: str) -> None:
    document = judge([rank("prefill"), rank("decode", {cause: "other", "kv_item_lens": "4 × 128"})])
    assert [found.summary.partition(" ")[0] for found in document.findings] == [cause]
    assert {s.name for s in document.settings if s.verdict == "mismatch"} == {cause, "kv_item_lens"}


def test_a_setting_that_differs_among_many_ranks_names_them_folded() -> None:
    odd = {"kv_cache_dtype": "fp8"}
    document = judge([rank("decode", odd if tp == 3 else {}, tp=tp, tp_size=16) for tp in range(16)])
    assert "auto: decode dp0 pp0 tp0-2,4-15; fp8: decode dp0 pp0 tp3" in document.findings[0].summary


def test_a_host_pool_may_have_other_pages() -> None:
    sparse = {"page_size": "64", "enable_hisparse": "True"}
    assert not judge([rank("prefill", {"page_size": "1"}), rank("decode", sparse)]).findings


def test_servers_that_do_not_deal_with_each_other_are_not_compared() -> None:
    other = {"page_size": "16", "disaggregation_bootstrap_port": "9000"}
    views = [
        rank("prefill"),
        rank("prefill", other, service="prefill@b", instance="prefill@b/1"),
        rank("decode", prefills=("10.0.0.1:8998",)),
        rank("decode", other, service="decode@b", instance="decode@b/1"),
    ]
    document = judge(views)
    assert not document.findings
    assert [s.peers for s in document.servers] == [("decode@a",), (), ("prefill@a",), ()]
    crossed = judge([*views[:3], rank("decode", prefills=("h:9000",), service="decode@b", instance="decode@b/1")])
    assert codes(crossed) == ["PD135"]


def test_a_rank_that_differs_from_its_server() -> None:
    document = judge([
        rank("decode", tp_size=3), rank("decode", {"page_size": "16"}, tp_size=3, tp=1), rank("decode", tp_size=3, tp=2),
    ])  # fmt: skip
    assert codes(document) == ["PD134"]
    assert document.findings[0].ranks == ("decode dp0 pp0 tp1",)
    [setting] = [s for s in document.settings if s.name == "page_size"]
    assert (setting.verdict, setting.servers["decode@a"]) == ("ranks differ", "1 | 16")


def test_nodes_and_stages_may_differ() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth0"}
    one = rank(
        "prefill", {"kv_item_lens": "4 × 256", "disaggregation_ib_device": "mlx5_0", "rank_port": "1"}, env, pp_size=2
    )
    other = rank(
        "prefill",
        {"kv_item_lens": "5 × 256", "disaggregation_ib_device": "mlx5_1", "rank_port": "2"},
        {"GLOO_SOCKET_IFNAME": "eth1"},
        pp_size=2,
        pp=1,
        host="there",
    )
    document = judge([one, other])
    assert not document.findings
    assert {s.name: s.verdict for s in document.settings}["rank_port"] == "per rank"
    here = rank("prefill", {"kv_item_lens": "4 × 256"}, {"GLOO_SOCKET_IFNAME": "eth1"}, pp_size=2, pp=1)
    assert codes(judge([one, here])) == ["PD134"]


def test_another_version_is_information_and_a_silent_rank_a_problem() -> None:
    document = judge([rank("prefill", engine_version="1"), rank("decode", engine_version="2")])
    assert [(f.code, f.level.value) for f in document.findings] == [("PD136", "info")]
    document = judge([rank("prefill"), RankSettings(identity(), "live", silence="timed out")])
    assert document.partial
    assert document.problems == ("decode dp0 pp0 tp0: timed out",)
