from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import GroupInfo, Identity
from pdctl.targets import nodeset
from pdctl.targets.nodeset import server_names
from pdctl.targets.selectors import Selection, Selector, check, parse
from pdctl.targets.selectors import select as select_ranks

BASE = Identity(
    engine="lab", engine_version="1", pdctl_version="1", role="decode", host="node-a", pid=1, proc_start=1,
    started_wall_ns=1, started_mono_ns=1, instance="i", service="s", cluster="c", world="w", world_rank=0,
)  # fmt: skip


def rank(**fields) -> Identity:
    return msgspec.structs.replace(BASE, **fields)


RANKS = [
    rank(role=role, dp=dp, pp=pp, tp=tp)
    for role, dp, pp, tp in itertools.product(("prefill", "decode"), range(2), range(2), range(12))
]


def select(patterns: Iterable[Selector], identities: Iterable[Identity]) -> list[Identity]:
    patterns = list(patterns)
    return [identity for identity in identities if any(pattern.matches(identity) for pattern in patterns)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("decode:dp0:pp0:tp1", 1),
        ("tp1:pp0:dp0:decode", 1),
        ("decode:tp1", 4),
        ("decode:tp01", 4),
        ("tp1", 8),
        ("decode", 48),
        ("*", 96),
        ("dec*:tp[01]", 8),
        ("decode:tp*:dp1:pp1", 12),
        ("decode:tp1?:dp1:pp1", 2),
        ("decode:tp[!0-9]", 0),
        ("decode:tp99", 0),
        ("host=node-*:decode:tp1", 4),
        ("cluster=other", 0),
        ("decode dp0 pp0 tp1", 1),
        ("decode dp0  tp1", 2),
        ("decode dp0 tp0,1", 4),
        ("decode:dp0:tp0-2,8-63", 14),
        ("decode:tp[01],3,08-9", 20),
        ("decode:tp[0,1]", 8),
        ("decode:tp-1", 0),
    ],
)
def test_means(text, count):
    found = select([parse(text)], RANKS)
    assert len(found) == count
    assert all(identity in RANKS for identity in found)


def test_several_patterns_mean_each_rank_once():
    assert len(select([parse("decode:tp1"), parse("decode:dp0:tp1"), parse("decode:dp0:pp0:tp2")], RANKS)) == 5


@given(st.sampled_from(RANKS), st.randoms())
def test_a_ranks_own_selector_means_it_alone_in_any_order(identity, random):
    parts = identity.selector.split(":")
    random.shuffle(parts)
    assert select([parse(":".join(parts))], RANKS) == [identity]


@given(st.sampled_from(RANKS))
def test_a_ranks_own_label_means_it_alone(identity):
    assert select([parse(identity.label)], RANKS) == [identity]


@given(st.sets(st.sampled_from(RANKS), min_size=1, max_size=9))
def test_what_is_folded_for_people_can_be_typed(identities):
    names = server_names(identities)
    terms = nodeset.terms(nodeset.place(one, names) for one in identities)
    assert set(select(map(parse, terms), RANKS)) == set(identities)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("decode:", "empty"),
        ("decode:tp", "number"),
        ("decode:tpx", "number"),
        ("decode:tp-1x", "number"),
        ("decode:tp3-1", "3-1, which runs backwards"),
        ("decode:tp0,3-1", "3-1, which runs backwards"),
        ("decode:tp[3-1]", "3-1, which runs backwards"),
        ("decode:tp0-", "needs a number, a range"),
        ("decode:tp0,", "needs a number, a range"),
        ("decode:tp[0", "needs a number, a range"),
        ("decode:tp0-1" + "0" * 5000, "needs a number, a range"),
        ("decode:tp1:tp2", "tp twice"),
        ("decode:prefill", "two roles"),
        ("decoder:tp1", "neither a role"),
        ("decode:xp1", "neither a role"),
        ("decode:1", "neither a role"),
        ("zone=a", "host=NAME"),
        ("host=", "host=NAME"),
    ],
)
def test_refuses_with_a_sentence(text, says):
    with pytest.raises(ValueError, match="rank pattern") as refused:
        parse(text)
    assert says in str(refused.value)


@given(st.text(alphabet="decodprfil:tp0123*?[]!,-=ghos ", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        selector = parse(text)
    except ValueError:  # and nothing else
        return
    assert set(select([selector], RANKS)) <= set(RANKS)


SERVERS = [
    rank(role=role, service=f"{role}@10.0.0.{host}:30000", instance=f"{role}{host}", dp=dp, tp=tp, world=f"{role}{host}",
         world_rank=2 * dp + tp, groups=(GroupInfo("attn-tp", (2 * dp, 2 * dp + 1), f"{role}{host}"),))
    for role, host in (("prefill", 1), ("decode", 2), ("decode", 3)) for dp in range(2) for tp in range(2)
]  # fmt: skip


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(), 12),
        (Selection(roles=("prefill",)), 4),
        (Selection(roles=("prefill", "decode")), 12),
        (Selection(servers=("10.0.0.3:30000",)), 4),
        (Selection(servers=("decode@10.0.0.3:30000",)), 4),
        (Selection(servers=("10.0.0.*",)), 12),
        (Selection(servers=("prefill", "decode3")), 8),
        (Selection(ranks=("tp0",), servers=("10.0.0.3:30000",)), 2),
        (Selection(ranks=("decode:dp0", "prefill"), roles=("decode",)), 4),
        (Selection(groups=("decode:dp1:tp0",)), 4),
        (Selection(groups=("decode:dp1",), servers=("10.0.0.2:*",)), 2),
        (Selection(groups=("decode dp1 pp0 · attention-TP group of 2 · decode@10.0.0.2:30000",)), 2),
        (Selection(groups=("prefill dp1 pp0 · attention-TP group of 2",)), 2),
        (Selection(groups=("prefill · dp attention of 2 dp ranks",)), 4),
    ],
)
def test_options_narrow_together(selection, count):
    assert len(select_ranks(selection, SERVERS)) == count


@pytest.mark.parametrize(
    ("selection", "said", "there"),
    [
        (Selection(roles=("router",)), "no role matches 'router'", "decode; prefill"),
        (Selection(servers=("10.0.0.9:30000",)), "no server matches '10.0.0.9:30000'", "decode@10.0.0.2:30000"),
        (Selection(groups=("decode:dp7",)), "no group matches 'decode:dp7'", "dp0,1 tp0,1"),
        (Selection(ranks=("decode:tp7",)), "no rank matches 'decode:tp7'", "dp0,1 tp0,1"),
        (Selection(ranks=("decode",), roles=("prefill",)), "no rank fits --rank and --role together", "dp0,1 tp0,1"),
        (Selection(groups=("nonsense",)), "is neither a role", ""),
    ],
)
def test_what_nothing_fits_is_wrong_usage_and_says_what_there_is(selection, said, there):
    with pytest.raises(PdctlError) as error:
        select_ranks(selection, SERVERS)
    assert error.value.code is Exit.USAGE
    assert said in error.value.message
    assert there in error.value.next_step


@pytest.mark.parametrize(
    "selection",
    [
        Selection(ranks=("decode:tp1", "nonsense")),
        Selection(ranks=("pid x",)),
        Selection(ranks=("tp3-1",)),
        Selection(groups=("decode:xp1 · attention-TP group of 2",)),
        Selection(roles=("router",)),
        Selection(servers=(" ",)),
    ],
)
def test_what_can_never_mean_a_rank_is_wrong_usage_whoever_is_there(selection):
    with pytest.raises(PdctlError) as error:
        check(selection)
    assert error.value.code is Exit.USAGE


def test_what_may_mean_a_rank_that_comes_later_is_not_refused():
    later = ("decode:tp99", "pid 7", "tcp://10.0.0.7:7000", "unified dp0 pp0 tp0", "unknown dp-1 pp0 tp3")
    check(Selection(ranks=later, groups=("decode dp7 · attention-TP group of 2",), servers=("x[",), roles=("unif*",)))
    for text in later:
        with pytest.raises(PdctlError, match="no rank matches"):
            select_ranks(Selection(ranks=(text,)), SERVERS)


def test_a_server_whose_address_has_brackets_is_meant_as_it_is_written():
    six = [rank(service=f"decode@[::{n}]:30000", instance=str(n)) for n in range(2)]
    assert select_ranks(Selection(servers=("[::1]:30000",)), six) == [1]


def test_of_thousands_of_servers_only_some_are_named():
    many = [rank(service=f"decode@10.0.{n}.1:1", instance=str(n)) for n in range(200)]
    with pytest.raises(PdctlError) as error:
        select_ranks(Selection(servers=("x",)), many)
    assert "and 188 more" in error.value.next_step
    assert len(error.value.next_step) < 500


def test_ranks_that_do_not_tell_their_groups_are_grouped_by_their_place():
    outside = [rank(dp=dp, tp=tp, instance="") for dp in range(2) for tp in range(2)]
    assert select_ranks(Selection(groups=("tp1:dp0",)), outside) == [0, 1]
