"""Many ranks in few words, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.targets.nodeset import (
    Place,
    brief,
    fold,
    fold_lines,
    join,
    listed,
    numbers,
    parse_numbers,
    place,
    server_names,
    shown_axes,
    terms,
    unfold,
)
from pdctl.targets.registration import nameless
from tests.support.identities import identity

small = st.integers(0, 9)
places = st.builds(Place, st.sampled_from(["decode", "prefill", "decode@lab:a (7.9)"]), small, small, small, small)


@given(st.sets(st.integers(0, 600)))
def test_numbers_come_back(values: set[int]) -> None:
    assert parse_numbers(numbers(values)) == values


@given(st.sets(places, max_size=60))
def test_places_come_back_and_none_is_said_twice(chosen: set[Place]) -> None:
    text = fold(chosen)
    assert unfold(text) == chosen
    assert sum(len(unfold(term)) for term in terms(chosen)) == len(chosen)


@given(st.sets(small), st.sets(small), st.sets(small))
def test_a_full_block_is_one_term(dps: set[int], pps: set[int], tps: set[int]) -> None:
    block = {Place("decode", dp, pp, 0, tp) for dp in dps for pp in pps for tp in tps}
    assert len(terms(block)) == min(len(block), 1)


def test_as_it_is_read() -> None:
    most = {Place("decode", 0, 0, 0, tp) for tp in (*range(7), *range(8, 64))}
    assert fold(most, ("dp", "tp")) == "decode dp0 tp0-6,8-63"
    assert fold(most, ("tp",), named=False) == "tp0-6,8-63"
    assert unfold("tp0-6,8-63") == {Place("", 0, 0, 0, tp) for tp in (*range(7), *range(8, 64))}
    assert numbers([3, 1, 2, 9, 10]) == "1-3,9,10"
    with pytest.raises(ValueError, match="x"):
        parse_numbers("1-x")


def test_servers_are_named_as_far_as_needed() -> None:
    one, other = identity(service="d@h:1", instance="d@h:1/7.1"), identity(service="d@h:2")
    alone, restarted = identity(role="prefill"), identity(service="d@h:1", instance="d@h:1/8.2")
    assert place(one, server_names([one, alone])).name == "decode"
    assert place(one, server_names([one, other, alone])).name == "d@h:1"
    assert place(restarted, server_names([one, restarted])).name == "d@h:1 (8.2)"
    assert shown_axes([one, identity(pp_size=2)]) == ("dp", "pp", "tp")


def test_ranks_of_which_only_the_endpoint_is_known_are_called_by_it() -> None:
    among = [nameless("tcp://a:1"), nameless("tcp://b:1"), identity(tp=1)]
    names, axes = server_names(among), shown_axes(among)
    assert [fold([place(one, names)], axes) for one in among] == ["tcp://a:1", "tcp://b:1", "decode dp0 tp1"]


def test_ranks_of_which_the_same_is_said_are_one_line() -> None:
    lines = [f"decode dp0 pp0 tp{tp}: no answer within 2 s" for tp in range(42)]
    assert fold_lines([*lines, "t.pdtrace is cut off", "prefill dp0 pp0 tp0: off", *lines]) == [
        "decode dp0 pp0 tp0-41: no answer within 2 s",
        "t.pdtrace is cut off",
        "prefill dp0 pp0 tp0: off",
    ]
    pids = [f"decode dp0 pp0 tp{tp}: pid {tp + 7} may not be read" for tp in range(3)]
    assert fold_lines(pids) == ["decode dp0 pp0 tp0-2: pid 7 may not be read (and 2 more pids)"]
    assert fold_lines(["x: y", "x: z", "x: y"]) == ["x: y", "x: z"]


def test_places_are_joined_as_far_as_they_name_the_same_axes_and_the_same_server() -> None:
    assert join(f"tp{n}" for n in (0, 1, 2, 3, 6)) == "tp0-3,6"
    assert join(["decode dp0 pp0 tp0", "decode dp0 pp0 tp1", "tcp://a:1"]) == "decode dp0 pp0 tp0,1; tcp://a:1"
    assert join(["dp0 tp0 of a", "dp0 tp1 of a", "dp0 tp0 of b"]) == "dp0 tp0,1 of a; dp0 tp0 of b"
    assert join(f"dp{n} tp0 (DP{n} TP{2 * n})" for n in range(4)) == "dp0-3 tp0"
    assert join(f"decode tp{n} d@10.0.0.{n % 2}:1 #1" for n in range(4)) == (
        "decode tp0,2 d@10.0.0.0:1 #1; decode tp1,3 d@10.0.0.1:1 #1"
    )
    assert listed(["tp0", "tp2"]) == "tp0, tp2"
    assert listed([f"tp{n}" for n in range(5)]) == "tp0-4"


def test_a_name_that_would_unfold_to_billions_of_places_is_taken_as_it_is() -> None:
    hostile = "decode tp0-99999999999"
    assert join([hostile, "decode tp1", "decode tp2"]) == f"decode tp1,2; {hostile}"
    assert join(["x tp3-1", "decode tp1"]) == "decode tp1; x tp3-1"
    with pytest.raises(ValueError, match="more than"):
        unfold("decode dp0-99999 tp0-99999")


def test_many_servers_with_the_same_places_are_counted() -> None:
    many = fold(Place(f"d@10.0.0.{n}:1", dp, 0, 0, tp) for n in range(8) for dp in range(2) for tp in range(4))
    assert brief(many) == "dp0,1 pp0 cp0 tp0-3 of 8 servers (d@10.0.0.0:1, d@10.0.0.1:1, …, d@10.0.0.7:1)"
    assert brief("decode dp0 tp0,1; prefill dp0 tp0,1") == "decode dp0 tp0,1; prefill dp0 tp0,1"
