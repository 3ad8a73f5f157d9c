"""What both sides of a pair must have alike, and how their sizes must fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdctl.probes.config.judge import mismatches
from pdctl.probes.preflight.checks import line
from pdctl.probes.preflight.model import (
    ERROR,
    INFO,
    NOT_APPLICABLE,
    OK,
    TRANSFER_VERSION,
    UNKNOWN,
    URLS,
    WARNING,
    Line,
    Pair,
    Side,
)

_SETTINGS = {
    "page_size": "page-size",
    "kv_cache_dtype": "kv-dtype",
    "kv_item_lens": "kv-layout",
    "aux_item_lens": "metadata-rows",
    "disaggregation_transfer_backend": "transfer",
}
_FROM_RANKS = ("kv_item_lens", "aux_item_lens")
"""What only ranks tell, not a server's HTTP."""
_MODEL = ("num_hidden_layers", "architectures", "model_type", "weight_version")
"""Of which each one that both sides tell must be the same."""
_FOLLOWS = {
    "kv-layout": ("page-size", "kv-dtype", "model", "speculative"),
    "metadata-rows": ("model", "speculative", "transfer"),
}
"""What differs because something else does: that is said once."""
_NO_DRAFT = ("", "NONE", "NGRAM")
"""Speculative algorithms without a draft model's KV."""
_ALIAS = {"NEXTN": "EAGLE"}


def equal(pair: Pair, way: str) -> Iterator[Line]:
    """Yield a line for each thing that both sides must have alike. way: what the look rests on."""
    lines = [*_model(pair), *_speculative(pair), *_parallel(pair), *_settings(pair, way)]
    wrong = {one.check for one in lines if one.verdict in (ERROR, WARNING)}
    for one in lines:
        causes = [cause for cause in _FOLLOWS.get(one.check, ()) if cause in wrong]
        if causes and one.verdict == ERROR:
            yield line(one.check, NOT_APPLICABLE, f"differs, as {causes[0]} does", about=pair.name)
        else:
            yield one


def _settings(pair: Pair, way: str) -> Iterator[Line]:
    prefill, decode = pair.prefill, pair.decode
    bad = dict(mismatches(prefill.values, decode.values, alike=_alike(pair)))
    for name, check in _SETTINGS.items():
        one, other = prefill.values.get(name, ""), decode.values.get(name, "")
        if name in bad:
            yield line(
                check,
                ERROR,
                f"{name} is {one} on prefill and {other} on decode",
                about=pair.name,
                code="PD135",
                why=f"{bad[name][:1].upper()}{bad[name][1:]}.",
                cure=_cure(name),
            )
        elif not one or not other:
            said = (
                "HTTP does not tell it; ranks with an agent do"
                if way == URLS and name in _FROM_RANKS
                else _lacks(name, pair)
            )
            yield line(check, UNKNOWN, said, about=pair.name)
        elif one == other:
            yield _same(check, name, one, pair)
        elif name == "kv_item_lens":
            yield line(
                check, OK, f"{one} and {other}: the sides split the model differently, as they may", about=pair.name
            )
        else:
            yield line(check, OK, f"{name} is {one} and {other}, which hisparse allows", about=pair.name)


def _same(check: str, name: str, value: str, pair: Pair) -> Line:
    """Return the line of a setting that both sides have alike; of the backend, with its versions where they are known."""
    packages = [side.values.get(TRANSFER_VERSION, "") for side in (pair.prefill, pair.decode)]
    if check != "transfer" or not all(packages):
        return line(check, OK, f"{name} is {value} on both", about=pair.name)
    if packages[0] == packages[1]:
        return line(check, OK, f"{value} on both, {packages[0]}", about=pair.name)
    found = f"{value} on both, {packages[0]} on prefill and {packages[1]} on decode"
    return line(check, INFO, found, about=pair.name, cure="Install the same version on both sides.")


def _lacks(name: str, pair: Pair) -> str:
    return _untold([side.role for side in (pair.prefill, pair.decode) if not side.values.get(name)], name)


def _untold(roles: Sequence[str], name: str) -> str:
    return f"{' and '.join(roles)} do{'es'[: 2 * (len(roles) == 1)]} not tell {name}"


def _cure(name: str) -> str:
    if name == "disaggregation_transfer_backend":
        return "Start both servers with the same --disaggregation-transfer-backend."
    if name == "aux_item_lens":
        return "Run the same engine version on both sides, with the same speculative settings."
    if name == "kv_item_lens":
        return "Start both servers with the same model, KV cache type and page size."
    return f"Start both servers with the same --{name.replace('_', '-')}."


def _alike(pair: Pair) -> bool:
    sizes = [
        (side.attention_tp, side.number("pp_size", 1), side.number("attn_cp_size", 1))
        for side in (pair.prefill, pair.decode)
    ]
    return sizes[0] == sizes[1]


def _model(pair: Pair) -> Iterator[Line]:
    prefill, decode = pair.prefill, pair.decode
    cure = "Start both servers with the same model and the same revision of its weights."
    both = [name for name in _MODEL if prefill.values.get(name) and decode.values.get(name)]
    for name in both:
        one, other = prefill.values[name], decode.values[name]
        if one != other:
            found = f"{name} is {one} on prefill and {other} on decode"
            yield line("model", ERROR, found, about=pair.name, code="PD135", cure=cure)
            return
    names = [_names(side) for side in (prefill, decode)]
    said = [next(iter(sorted(each)), "") for each in names]
    if names[0] and names[1] and not names[0] & names[1]:
        found = f"prefill serves {said[0]} and decode serves {said[1]}: whether that is one model is not known"
        if prefill.values.get("model_path") and decode.values.get("model_path"):
            cure = f"{cure} One model with two names: give both servers the same --served-model-name."
            yield line("model", WARNING, found, about=pair.name, code="PD135", cure=cure)
        else:  # a server may have been given another name than its model has
            yield line("model", UNKNOWN, found, about=pair.name, essential=False)
    elif both or (names[0] and names[1]):
        known = [f"{name} {prefill.values[name]}" for name in both]
        yield line("model", OK, ", ".join([*sorted(names[0] & names[1])[:1], *known]) + " on both", about=pair.name)
    else:
        yield line("model", UNKNOWN, "the servers do not tell which model they have", about=pair.name)


def _names(side: Side) -> set[str]:
    """Return what a model is called: the last part of its path, of a cached one its name on the hub."""
    found = set()
    for name in ("served_model_name", "model_path"):
        parts = [part for part in side.values.get(name, "").split("/") if part]
        hub = next((part for part in parts if part.startswith("models--")), "")
        if parts:
            found.add((hub.rpartition("--")[2] or parts[-1]).lower())
    return found


def _speculative(pair: Pair) -> Iterator[Line]:
    name = "speculative_algorithm"
    sides = (pair.prefill, pair.decode)
    unsaid = [side.role for side in sides if name not in side.values]
    apart = [side.role for side in sides if name in side.apart]
    if apart:
        yield line(
            "speculative", UNKNOWN, f"the ranks of {' and of '.join(apart)} do not agree on {name}", about=pair.name
        )
        return
    if len(unsaid) == len(sides) and not any(side.silence for side in sides):
        yield line("speculative", OK, "no server has such settings", about=pair.name)
        return
    if unsaid:
        yield line("speculative", UNKNOWN, _untold(unsaid, name), about=pair.name)
        return
    one, other = (_ALIAS.get(side.values[name].upper(), side.values[name].upper()) for side in sides)
    if one == other or (one in _NO_DRAFT and other in _NO_DRAFT):
        said = f"{one or 'none'} on both" if one == other else f"{one or 'none'} and {other or 'none'}: no draft model"
        yield line("speculative", OK, said, about=pair.name)
        return
    yield line(
        "speculative",
        ERROR,
        f"{name} is {one or 'not set'} on prefill and {other or 'not set'} on decode",
        about=pair.name,
        code="PD135",
        cure="Start both servers with the same --speculative-algorithm and the same draft model.",
    )


def _parallel(pair: Pair) -> Iterator[Line]:
    prefill, decode = pair.prefill, pair.decode
    one, other = prefill.attention_tp, decode.attention_tp
    pp, decode_pp = prefill.number("pp_size"), decode.number("pp_size")
    if not (one and other and pp and decode_pp):
        yield line("parallel", UNKNOWN, "a server does not tell its tp and pp sizes", about=pair.name)
        return
    wrong = []
    if decode_pp not in (pp, 1):
        wrong.append(
            (f"pp_size is {pp} on prefill and {decode_pp} on decode", "Give decode a pp size of 1, or prefill's.")
        )
    if decode.number("attn_cp_size", 1) > 1:
        wrong.append(
            (f"decode has an attention-CP size of {decode.number('attn_cp_size')}", "Give decode a CP size of 1.")
        )
    if max(one, other) % min(one, other):
        wrong.append(
            (
                f"the attention-TP size is {one} on prefill and {other} on decode: neither is a multiple of the other",
                "Choose tp and dp sizes so that one side's attention-TP size is a multiple of the other's.",
            )
        )
    for found, cure in wrong:
        yield line("parallel", ERROR, found, about=pair.name, code="PD135", cure=cure)
    if not wrong:
        dp = [side.number("dp_size", 1) for side in (prefill, decode)]
        said = f"attention-TP {one} and {other}, pp {pp} and {decode_pp}, dp {dp[0]} and {dp[1]}"
        yield line("parallel", OK, said, about=pair.name)
