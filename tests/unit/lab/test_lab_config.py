from __future__ import annotations

import pytest

from pdctl.lab.config import (
    FIXES,
    LabConfig,
    Shape,
    check,
    check_name,
    parse_names,
    parse_settings,
    parse_shape,
    parse_steps,
)
from pdctl.lab.launch import expected
from pdctl.protocol.errors import Exit, PdctlError


def test_sizes() -> None:
    assert parse_shape("tp=2, pp=3") == Shape(tp=2, pp=3)
    assert parse_shape("") == Shape()
    assert parse_shape("dp=2").ranks == 2


@pytest.mark.parametrize("text", ["2", "tp=0", "tp=17", "tp=x", "ep=2", "tp=2;pp=1", "tp=-1"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(PdctlError) as raised:
        parse_shape(text)
    assert raised.value.code == Exit.USAGE


def test_steps_of_the_sides() -> None:
    assert parse_steps("12s") == {"prefill": 12.0}
    assert parse_steps("prefill=1m30s, decode=50ms") == {"prefill": 90.0, "decode": 0.05}
    assert parse_steps("") == {}


@pytest.mark.parametrize("text", ["12", "gateway=1s", "decode=", "=1s", "-1s", "2h", "1s,2s", "decode=1s,decode=2s"])
def test_what_is_no_step(text: str) -> None:
    with pytest.raises(PdctlError, match="no duration of a forward") as raised:
        parse_steps(text)
    assert raised.value.code == Exit.USAGE


def test_settings_of_one_side() -> None:
    settings = parse_settings(["page_size=16", "kv_cache_dtype=fp8_e5m2", "SGLANG_MOONCAKE_SEND_AUX_TCP=1", "dtype="])
    assert settings == {
        "page_size": "16", "kv_cache_dtype": "fp8_e5m2", "SGLANG_MOONCAKE_SEND_AUX_TCP": "1", "dtype": "",
    }  # fmt: skip
    assert LabConfig("x", decode_set=settings).settings("decode") == settings
    assert LabConfig("x", decode_set=settings).settings("prefill") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp_size=4", "can't be set"),
        ("PATH=/", "can't be set"),
        ("page_size", "sets nothing"),
        ("page_size=0", "sets nothing"),
        ("page_size=x", "sets nothing"),
        ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT=5", "--waiting-timeout"),
    ],
)
def test_what_is_no_setting_of_one_side(text: str, said: str) -> None:
    with pytest.raises(PdctlError) as raised:
        parse_settings([text])
    assert raised.value.code == Exit.USAGE
    assert said in raised.value.message + raised.value.next_step


def test_names_come_once_and_unknown_ones_list_the_known() -> None:
    assert parse_names(["gate,receiver", "gate"], tuple(FIXES), "fix") == ("gate", "receiver")
    with pytest.raises(PdctlError, match="brakes") as raised:
        parse_names(["gate,brakes"], tuple(FIXES), "fix")
    assert all(name in raised.value.next_step for name in FIXES)


def test_a_fix_is_there_unless_left_out_and_must_exist() -> None:
    config = LabConfig("x", without=("gate",))
    assert not config.has("gate")
    assert config.has("receiver")
    with pytest.raises(KeyError):
        config.has("brakes")


@pytest.mark.parametrize(
    "config",
    [
        LabConfig("x", prefill=Shape(pp=2), decode=Shape(pp=4)),
        LabConfig("x", prefill=Shape(tp=3), decode=Shape(tp=2)),
        LabConfig("x", prefill=Shape(pp=3)),
        LabConfig("x", prefill=Shape(tp=16, dp=4), decode=Shape(tp=16)),
        LabConfig("x", prefill=Shape(tp=16), decode=Shape(tp=16), prefills=4),
        LabConfig("x", shared_bootstrap=True),
        LabConfig("x", dp_attention=True),
        LabConfig("x", prefill=Shape(dp=2, pp=2), dp_attention=True),
    ],
)
def test_what_does_not_go_together(config: LabConfig) -> None:
    with pytest.raises(PdctlError) as raised:
        check(config)
    assert raised.value.code == Exit.USAGE


def test_each_prefill_server_has_a_bootstrap_server_unless_they_share_one() -> None:
    assert LabConfig("x").servers == ("prefill", "decode")
    apart, shared = LabConfig("x", prefills=2), LabConfig("x", prefills=2, shared_bootstrap=True)
    assert apart.servers == ("prefill", "prefill1", "decode")
    assert apart.bootstraps == {"prefill": "bootstrap", "prefill1": "bootstrap1"}
    assert shared.bootstraps == {"prefill": "bootstrap", "prefill1": "bootstrap"}
    assert expected(apart)[:4] == ["bootstrap", "bootstrap1", "prefill dp0 pp0 tp0", "prefill1 dp0 pp0 tp0"]
    assert expected(shared)[:2] == ["bootstrap", "prefill dp0 pp0 tp0"]


@pytest.mark.parametrize("name", ["", "A", "../x", "a b", "x" * 25, "-x"])
def test_what_can_not_be_a_name(name: str) -> None:
    with pytest.raises(PdctlError):
        check_name(name)
