"""How a sender registers is told from the shape of its code; the shapes are those of SGLang's versions, shortened."""

from __future__ import annotations

from types import CodeType
from typing import Any

import pytest

from pdctl.engines.sglang.routing import registration
from pdctl.protocol.requests import NOTES_CONFLICTS, REGISTERS_EVERY_ROOM

envs: Any = None


def to_0_5_10(self: Any, args: Any) -> None:
    if args.dp_size > 1 and args.load_balance_method != "follow_bootstrap_room":
        self._register_prefill_dp_rank()


def from_0_5_11_to_0_5_18(self: Any, args: Any) -> None:
    if args.dp_size > 1:
        if args.load_balance_method != "follow_bootstrap_room":
            self._register_prefill_dp_rank()
        elif self.kv_mgr.attn_dp_rank != self.bootstrap_room % args.dp_size:
            if envs.SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK.get():
                self._register_prefill_dp_rank()
            else:
                self.kv_mgr.record_failure(f"{self.bootstrap_room} implies {self.bootstrap_room % args.dp_size}")


def of_0_5_23(self: Any, args: Any) -> None:
    if args.dp_size > 1:
        if (
            args.load_balance_method != "follow_bootstrap_room"
            or envs.SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK.get()
        ):
            self._register_prefill_dp_rank()
        elif self.kv_mgr.attn_dp_rank != self.bootstrap_room % args.dp_size:
            self.kv_mgr.record_failure(f"{self.bootstrap_room} implies {self.bootstrap_room % args.dp_size}")


def in_a_helper(self: Any, args: Any) -> None:
    self._maybe_register(args)


def compared_elsewhere(self: Any, args: Any) -> None:
    if self._conflicts(args) and envs.SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK.get():
        self._register_prefill_dp_rank()


@pytest.mark.parametrize(
    ("code", "seams"),
    [
        (to_0_5_10.__code__, {NOTES_CONFLICTS: False, REGISTERS_EVERY_ROOM: False}),
        (from_0_5_11_to_0_5_18.__code__, {NOTES_CONFLICTS: True, REGISTERS_EVERY_ROOM: False}),
        (of_0_5_23.__code__, {NOTES_CONFLICTS: True, REGISTERS_EVERY_ROOM: True}),
        (in_a_helper.__code__, {}),
        (compared_elsewhere.__code__, {}),
    ],
)
def test_registration(code: CodeType, seams: dict[str, bool]) -> None:
    assert {seam.name: seam.present for seam in registration(code)} == seams
