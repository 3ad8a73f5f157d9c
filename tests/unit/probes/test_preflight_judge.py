"""Pairs that can't work, each named by its cause alone; pairs that can; and what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pdctl.probes.preflight.judge import fit_for_a_request, judge
from pdctl.probes.preflight.model import (
    RANKS,
    SETTINGS,
    URLS,
    Clock,
    Door,
    Evidence,
    Handshake,
    Line,
    Pair,
    PreflightDocument,
    Side,
)
from pdctl.probes.routing.facts import CONFLICTING, EVERY
from pdctl.probes.routing.model import Fault, ServerView
from pdctl.protocol.requests import FORCE_QUERY
from pdctl.report.findings import finding

VALUES = {
    "attn_cp_size": "1", "aux_item_lens": "2 × 8, 6 × 64, 2 × 512", "disaggregation_bootstrap_port": "8998",
    "disaggregation_transfer_backend": "mooncake", "dp_size": "1", "enable_dp_attention": "False", "enable_hisparse": "False",
    "host": "0.0.0.0", "kv_cache_dtype": "auto", "kv_item_lens": "64 × 131072", "load_balance_method": "follow_bootstrap_room",
    "num_hidden_layers": "32", "page_size": "64", "pp_size": "1", "served_model_name": "/models/llama", "tp_size": "2",
    "speculative_algorithm": "",
}  # fmt: skip
"""Of a rank, as it tells them."""
INFO = {"dp_size": "1", "pp_size": "1", "attn_tp_size": "2", "page_size": "64", "kv_cache_dtype": "auto"}
WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
BOOTSTRAP = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"


def side(role: str, values: Mapping[str, str] = {}, env: Mapping[str, str] | None = None, **how: Any) -> Side:
    known = {
        "engine": "sglang", "version": "0.5.13.post1", "ranks": 2, "answered": 2, "lacks": frozenset(), "hosts": frozenset("a")
    }  # fmt: skip
    return Side(f"{role}@a", role, values={**VALUES, **values}, env={} if env is None else env, **{**known, **how})


def evidence(
    prefill: Side | None = None,
    decode: Side | None = None,
    bootstrap: ServerView | None = None,
    way: str = RANKS,
    **how: Any,
) -> Evidence:
    pair = Pair(
        prefill or side("prefill"),
        decode or side("decode"),
        bootstrap or ServerView("10.0.0.1:8998", info=INFO, routes={(0, 0, 0, 0): 4000}),
        how.pop("unknown_places", ()),
    )
    known = {"doors": (Door("decode@a", "prefill tp0", "10.0.0.1:4000"),), "clocks": (Clock("a", 0.0, 0.0),)}
    return Evidence(way, (pair.prefill, pair.decode), (pair,), **{**known, **how})


def bad(document: PreflightDocument) -> list[tuple[str, str, str]]:
    return [(one.check, one.verdict, one.code) for one in document.lines if one.verdict in ("error", "warning")]


def line(document: PreflightDocument, check: str) -> Line:
    [found] = [one for one in document.lines if one.check == check]
    return found


SPEC = {"speculative_algorithm": "EAGLE", "kv_item_lens": "66 × 131072", "aux_item_lens": "2 × 8, 9 × 64"}
DP2 = {"dp_size": "2", "enable_dp_attention": "True", "tp_size": "4"}
OLD = {"version": "0.5.12.post1", "lacks": frozenset(("gate",))}

WRONG: dict[str, tuple[Evidence, tuple[str, str, str], str]] = {
    "page size": (
        evidence(decode=side("decode", {"page_size": "1", "kv_item_lens": "64 × 2048"})),
        ("page-size", "error", "PD135"),
        "page_size is 64 on prefill and 1 on decode",
    ),
    "KV dtype": (
        evidence(decode=side("decode", {"kv_cache_dtype": "fp8_e5m2", "kv_item_lens": "64 × 65536"})),
        ("kv-dtype", "error", "PD135"),
        "--kv-cache-dtype",
    ),
    "KV layout": (
        evidence(decode=side("decode", {"kv_item_lens": "64 × 4096"})),
        ("kv-layout", "error", "PD135"),
        "written to the wrong places",
    ),
    "another model": (
        evidence(decode=side("decode", {"num_hidden_layers": "80", "kv_item_lens": "160 × 131072"})),
        ("model", "error", "PD135"),
        "num_hidden_layers is 32 on prefill and 80 on decode",
    ),
    "another fine-tune": (
        evidence(
            side("prefill", {"model_path": "/models/llama"}),
            side("decode", {"model_path": "meta/llama-instruct", "served_model_name": "meta/llama-instruct"}),
        ),
        ("model", "warning", "PD135"),
        "whether that is one model is not known",
    ),
    "metadata rows": (
        evidence(decode=side("decode", {"aux_item_lens": "2 × 8, 7 × 64, 2 × 512"})),
        ("metadata-rows", "error", "PD135"),
        "same engine version",
    ),
    "transfer backend": (
        evidence(decode=side("decode", {"disaggregation_transfer_backend": "nixl"})),
        ("transfer", "error", "PD135"),
        "--disaggregation-transfer-backend",
    ),
    "speculative decoding on one side": (
        evidence(decode=side("decode", SPEC)),
        ("speculative", "error", "PD135"),
        "speculative_algorithm is not set on prefill and EAGLE on decode",
    ),
    "pipeline stages": (
        evidence(side("prefill", {"pp_size": "4"}), side("decode", {"pp_size": "2"}), ServerView("b:1", info={})),
        ("parallel", "error", "PD135"),
        "pp size of 1, or prefill's",
    ),
    "attention TP": (
        evidence(decode=side("decode", {"tp_size": "3", "kv_item_lens": "64 × 9"})),
        ("parallel", "error", "PD135"),
        "neither is a multiple",
    ),
    "FORCE_QUERY on one side": (
        evidence(side("prefill", DP2), side("decode", env={FORCE_QUERY: "1"}), way=SETTINGS),
        ("routing", "error", "PD123"),
        "set on decode and not set on prefill",
    ),
    "FORCE_QUERY hole": (
        evidence(
            side("prefill", DP2, {FORCE_QUERY: "1"}, registers=CONFLICTING),
            side("decode", env={FORCE_QUERY: "1"}),
            ServerView("b:1", info={}),
        ),
        ("defects", "error", "PD172"),
        "registers only those that conflict",
    ),
    "no gate": (
        evidence(side("prefill", **OLD), side("decode", **OLD)),
        ("defects", "warning", "PD172"),
        "PD101 is known for decode 0.5.12.post1",
    ),
    "NIXL aborts": (
        evidence(
            side("prefill", {"disaggregation_transfer_backend": "nixl"}, lacks=frozenset(("aborts",))),
            side("decode", {"disaggregation_transfer_backend": "nixl"}),
        ),
        ("defects", "warning", "PD172"),
        "ends prefill's bootstrap thread",
    ),
    "bootstrap server dead": (
        evidence(bootstrap=ServerView("10.0.0.1:8998", silence="connection refused", fault=Fault.REFUSES)),
        ("bootstrap", "error", "PD145"),
        "connection refused",
    ),
    "bootstrap table not complete": (
        evidence(bootstrap=ServerView("10.0.0.1:8998", info_off="503: 1 workers registered")),
        ("bootstrap", "error", "PD170"),
        "does not know all ranks",
    ),
    "bootstrap server of another deployment": (
        evidence(bootstrap=ServerView("10.0.0.1:8998", info={**INFO, "dp_size": "4"})),
        ("bootstrap", "error", "PD170"),
        "dp_size 4, and prefill has 1",
    ),
    "a rank missing in the table": (
        evidence(unknown_places=("prefill dp0 pp0 tp1",)),
        ("bootstrap", "error", "PD129"),
        "does not know prefill dp0 pp0 tp1",
    ),
    "prefill on loopback": (
        evidence(side("prefill", {"host": "127.0.0.1"}), side("decode", hosts=frozenset("b"))),
        ("bootstrap", "error", "PD145"),
        "--host 0.0.0.0",
    ),
    "a port that is closed": (
        evidence(doors=(Door("decode@a", "prefill tp0", "10.0.0.1:4000", "connection refused"),)),
        ("ports", "error", "PD173"),
        "decode@a can't connect to prefill tp0 at 10.0.0.1:4000",
    ),
    "decode gives up at once": (
        evidence(decode=side("decode", env={WAITING: "5"})),
        ("time-outs", "warning", "PD171"),
        "decode gives a request up 5.0 s after",
    ),
    "prefill gives up before decode has asked": (
        evidence(side("prefill", env={BOOTSTRAP: "10"})),
        ("time-outs", "warning", "PD171"),
        "while decode may still ask",
    ),
    "heartbeat slower than the wait": (
        evidence(decode=side("decode", env={WAITING: "30", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "10"})),
        ("time-outs", "warning", "PD171"),
        "notices after 50.0 s",
    ),
    "router gives up first": (evidence(router_s=60.0), ("time-outs", "warning", "PD171"), "the router gives a request up"),
    "a time-out that is none": (
        evidence(decode=side("decode", env={WAITING: "5m"})),
        ("time-outs", "warning", "PD171"),
        "which is no time",
    ),
    "wrong role": (
        evidence(decode=side("decode", {"disaggregation_mode": "null"})),
        ("servers", "error", "PD170"),
        "a server without disaggregation, not a decode server",
    ),
    "starting": (evidence(decode=side("decode", unready="HTTP 503")), ("servers", "error", "PD170"), "HTTP 503"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_work_is_named_once_by_its_cause(name: str) -> None:
    seen, expected, words = WRONG[name]
    document = judge(seen)
    assert bad(document) == [expected]
    [found] = [one for one in document.lines if one.verdict in ("error", "warning")]
    assert words in f"{found.found} {found.why} {found.cure}"
    assert found.why.endswith(".")
    assert found.cure
    assert document.fit is (None if found.verdict == "unknown" else found.verdict != "error")
    named = [one for one in document.findings if one.level.value in ("error", "warning")]
    assert [(one.code, one.level.value) for one in named] == [(expected[2], expected[1])]
    assert fit_for_a_request(document) is (expected[1] == "warning")


MLA = {"tp_size": "4", "kv_item_lens": "61 × 73728"}
RIGHT: dict[str, Evidence] = {
    "equal sides": evidence(),
    "decode split in another way": evidence(
        side("prefill", {"pp_size": "2", "tp_size": "4", "kv_item_lens": "32 × 65536"}),
        side("decode", {"tp_size": "8", "kv_item_lens": "64 × 32768"}),
        ServerView("b:1", info={"pp_size": "2", "attn_tp_size": "4"}),
    ),
    "dp attention with queries": evidence(
        side("prefill", {**DP2, **MLA, "load_balance_method": "total_tokens"}, registers=EVERY),
        side("decode", {**DP2, **MLA}),
        ServerView("b:1", info={"dp_size": "2", "attn_tp_size": "2"}),
    ),
    "one model under two paths": evidence(
        side("prefill", {"served_model_name": "/cache/hub/models--meta--Llama-3/snapshots/0a1b"}),
        side("decode", {"served_model_name": "meta/llama-3/"}),
    ),
    "speculative on both, by two names": evidence(
        side("prefill", {**SPEC, "speculative_algorithm": "NEXTN"}), side("decode", SPEC)
    ),
    "n-grams on decode alone": evidence(decode=side("decode", {"speculative_algorithm": "NGRAM"})),
    "hisparse": evidence(decode=side("decode", {"page_size": "1", "enable_hisparse": "True"})),
    "FORCE_QUERY where every room is registered": evidence(
        side("prefill", DP2, {FORCE_QUERY: "1"}, registers=EVERY, version="0.5.23"),
        side("decode", env={FORCE_QUERY: "1"}, version="0.5.23"),
        ServerView("b:1", info={}),
    ),
    "an old version with one decode rank": evidence(
        side("prefill", **OLD), side("decode", {"tp_size": "1", "kv_item_lens": "64 × 262144"}, **OLD)
    ),
    "short, but fitting time-outs": evidence(
        side("prefill", env={BOOTSTRAP: "120"}), side("decode", env={WAITING: "60"}), router_s=120.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_be_so_is_fit(name: str) -> None:
    document = judge(RIGHT[name])
    assert bad(document) == []
    assert document.fit is True
    assert not [one for one in document.findings if one.level.value != "info"]


def test_a_loaded_gate_counts_more_than_the_number_of_the_version() -> None:
    old = {"version": "0.5.12.post1"}
    mended = evidence(side("prefill", **old), side("decode", lacks=frozenset(), **old))
    assert bad(judge(mended)) == []
    by_number = evidence(side("prefill", **old), side("decode", lacks=None, **old))
    assert bad(judge(by_number)) == [("defects", "warning", "PD172")]
    unknown = evidence(decode=side("decode", lacks=None, version="0.5.13rc1"))
    assert line(judge(unknown), "defects").verdict == "unknown"


def test_what_http_does_not_tell_leaves_a_pair_fit() -> None:
    told = {
        name: value
        for name, value in VALUES.items()
        if name not in ("kv_item_lens", "aux_item_lens", "num_hidden_layers")
    }
    sides = [replace(side(role), values=told, env=None, lacks=None) for role in ("prefill", "decode")]
    document = judge(evidence(sides[0], sides[1], way=URLS, doors=None))
    assert document.fit is True
    unknown = {one.check for one in document.lines if one.verdict == "unknown"}
    assert unknown == {"kv-layout", "metadata-rows", "time-outs", "ports"}


@pytest.mark.parametrize("missing", ["page_size", "disaggregation_transfer_backend", "tp_size"])
def test_what_decides_it_and_is_not_told_leaves_it_open(missing: str) -> None:
    values = {name: value for name, value in VALUES.items() if name != missing}
    document = judge(evidence(decode=replace(side("decode"), values=values)))
    assert document.fit is None
    assert document.partial


def test_ranks_that_are_silent_leave_it_open_and_are_no_finding() -> None:
    quiet = side("decode", answered=1, silent=("decode dp0 pp0 tp1: no answer within 2 s",))
    document = judge(evidence(decode=quiet))
    assert (document.fit, document.findings) == (None, ())
    assert "1 of 2 ranks of decode@a answer" in line_of_side(document, "decode@a").found


def test_what_a_side_does_not_tell_is_not_said_to_be_well() -> None:
    nothing = {
        "values": {},
        "env": None,
        "silence": "none of its ranks tells its settings",
        "version": "",
        "lacks": None,
    }
    sides = [replace(side(role), **nothing) for role in ("prefill", "decode")]
    document = judge(evidence(*sides))
    assert document.fit is None
    told = {one.check: one.found for one in document.lines if one.verdict == "unknown"}
    assert told["alike"] == "no rank tells its settings"
    assert told["defects"] == "version or settings of prefill and decode are not told"
    assert told["speculative"] == "prefill and decode do not tell speculative_algorithm"
    assert told["time-outs"] == "not told"
    half = judge(evidence(decode=sides[1]))
    assert line(half, "alike").found == "of each server, the ranks that answer have the same settings"
    assert line(half, "defects").found == "version or settings of decode are not told"


def test_drafts_that_one_side_does_not_tell_of_leave_it_open() -> None:
    silent = {name: value for name, value in VALUES.items() if name != "speculative_algorithm"}
    eagle, untold = (
        side("prefill", SPEC),
        replace(side("decode", SPEC), values={**silent, "kv_item_lens": "66 × 131072"}),
    )
    found = line(judge(evidence(eagle, untold)), "speculative")
    assert (found.verdict, found.found) == ("unknown", "decode does not tell speculative_algorithm")
    assert judge(evidence(eagle, untold)).partial
    neither = judge(evidence(replace(side("prefill"), values=silent), replace(side("decode"), values=silent)))
    assert line(neither, "speculative").found == "no server has such settings"
    apart = [replace(one, values=silent, apart=frozenset(("speculative_algorithm",))) for one in (eagle, untold)]
    found = line(judge(evidence(*apart)), "speculative")
    assert (found.verdict, found.found) == (
        "unknown",
        "the ranks of prefill and of decode do not agree on speculative_algorithm",
    )


def line_of_side(document: PreflightDocument, about: str) -> Line:
    [found] = [one for one in document.lines if one.check == "ranks" and one.about == about]
    return found


def test_one_side_alone_is_not_fit_and_not_wrong() -> None:
    document = judge(Evidence(RANKS, (side("prefill"),), clocks=(Clock("a", 0.0, 0.0),)))
    assert document.fit is None
    assert "no decode server was found" in [one.found for one in document.lines]


def test_a_server_that_does_not_answer_is_named_and_two_of_them_are_nothing_to_judge() -> None:
    quiet = Side("decode http://d:1", "decode", silence="connection refused")
    one = judge(Evidence(URLS, (side("prefill"), quiet)))
    assert ("servers", "error", "PD170") in bad(one)
    none = judge(Evidence(URLS, (Side("prefill http://p:1", "prefill", silence="connection refused"), quiet)))
    assert (bad(none), none.findings, none.fit) == ([], (), None)


def test_what_other_probes_say_is_told_once_in_their_words() -> None:
    said = finding("PD137", "two prefill servers share a bootstrap server")
    document = judge(evidence(bootstrap=ServerView("b:1", silence="refused", fault=Fault.REFUSES), said=(said,)))
    assert bad(document) == [("bootstrap", "error", "PD137")]
    assert document.findings == (said,)


def test_clocks_that_are_apart_are_information() -> None:
    apart = judge(evidence(clocks=(Clock("a", 0.0, 0.0), Clock("b", -31.0, 0.5))))
    assert line(apart, "clocks").verdict == "info"
    assert apart.fit is True
    near = judge(evidence(clocks=(Clock("a", 0.0, 0.0), Clock("b", 2.2, 0.5))))
    assert line(near, "clocks").verdict == "ok"


def test_a_name_that_one_server_was_given_is_no_other_model() -> None:
    document = judge(evidence(decode=side("decode", {"served_model_name": "chat"})))
    assert (line(document, "model").verdict, document.fit) == ("unknown", True)


def test_versions_of_the_backend_that_differ_are_information() -> None:
    sides = [
        side(role, {"transfer_version": f"mooncake-transfer-engine 0.3.{n}"})
        for n, role in enumerate(("prefill", "decode"))
    ]
    apart = line(judge(evidence(*sides)), "transfer")
    assert (apart.verdict, apart.code) == ("info", "")
    assert "mooncake-transfer-engine 0.3.0 on prefill" in apart.found


def test_ports_of_other_hosts_are_not_said_to_be_open() -> None:
    away = Door("decode@b", "prefill tp0", "10.0.0.1:4000", "its ranks are on another host", tried=False)
    document = judge(evidence(doors=(away,)))
    assert line(document, "ports").verdict == "unknown"
    assert document.fit is True


def test_a_request_that_got_through_says_which_way() -> None:
    sent = Handshake(
        True, "a request was answered", 7, {"decode tp0": ("decode.prealloc", "decode.transfer")}, ("decode tp1",)
    )
    found = line(judge(evidence(handshake=sent)), "handshake")
    assert found.verdict == "ok"
    assert "decode tp0: decode.prealloc > decode.transfer" in found.found
    assert "Not followed on decode tp1" in found.found
    lost = judge(evidence(handshake=replace(sent, answered=False)))
    assert bad(lost) == [("handshake", "error", "PD174")]
    assert line(lost, "handshake").cure.startswith("pdctl story 7 ")
    assert judge(evidence(handshake=Handshake(None, "not sent"))).fit is None


def test_pairs_are_told_apart() -> None:
    first, second = side("prefill"), replace(side("prefill"), name="prefill@b", values={**VALUES, "page_size": "16"})
    decode = side("decode")
    info = ServerView("b:1", info={})
    document = judge(Evidence(RANKS, (first, second, decode), (Pair(first, decode, info), Pair(second, decode, info))))
    assert [one.about for one in document.lines if one.verdict == "error"] == ["prefill@b > decode@a"]
