from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.model import Identity
from pdctl.targets import nodeset
from pdctl.targets.nodeset import server_names
from pdctl.targets.selectors import Selector, parse

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
        ("decode:tp3-1", 0),
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
