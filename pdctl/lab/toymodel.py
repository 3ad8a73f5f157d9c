"""The lab's stand-in for a model: deterministic tokens that depend on every KV row and on the metadata row.

Next token = f(last token, sum over all KV rows). Each tensor-parallel rank adds up its share of the columns and the
shares are summed by an all_reduce, so the tokens are the same for every tp size. A request that got another one's
metadata or KV gets other tokens, and whoever knows the prompt can tell (:func:`expected_tokens`). numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 32003
COLUMNS = 16
_MODULUS = 4093  # a share fits into float32 exactly, and so does the sum over 64 ranks


def kv_rows(tokens: Sequence[int], start: int, layer: int) -> NDArray[np.int32]:
    """Return the KV rows (len(tokens) × COLUMNS) of ``tokens`` at positions from ``start`` on, in one layer."""
    token = np.asarray(tokens, np.int64)[:, None]
    position = np.arange(start, start + len(tokens), dtype=np.int64)[:, None]
    column = np.arange(COLUMNS, dtype=np.int64)[None, :]
    mixed = token * 40503 + position * 9973 + (layer + 1) * 7919 + column * 104729
    return ((mixed ^ (mixed >> 7)) % 1021).astype(np.int32)


def share(kv: NDArray[np.int32], tp_rank: int, tp_size: int) -> int:
    """Return what one rank adds: the sum of its columns over all rows (layers × tokens × COLUMNS)."""
    columns = np.arange(COLUMNS) % tp_size == tp_rank
    return int(kv[..., columns].sum(dtype=np.int64) % _MODULUS)


def next_token(token: int, shares: int) -> int:
    """Return the token after ``token``, given the sum of all ranks' shares."""
    return (token * 31 + shares % _MODULUS * 17 + 7) % VOCABULARY


def prompt_kv(prompt: Sequence[int], layers: int) -> NDArray[np.int32]:
    """Return the KV rows of a whole prompt: layers × tokens × COLUMNS."""
    return np.stack([kv_rows(prompt, 0, layer) for layer in range(layers)])


def expected_tokens(prompt: Sequence[int], count: int, layers: int) -> list[int]:
    """Return the ``count`` tokens that a request must give, computed without any cluster."""
    total = share(prompt_kv(prompt, layers), 0, 1)
    tokens = [next_token(prompt[-1], total)]
    while len(tokens) < count:
        position = len(prompt) + len(tokens) - 1
        total += sum(share(kv_rows(tokens[-1:], position, layer), 0, 1) for layer in range(layers))
        tokens.append(next_token(tokens[-1], total))
    return tokens
