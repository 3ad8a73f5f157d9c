"""Select the visits that a fault takes: a pure function, with the same result on every rank and in every run."""

from __future__ import annotations

import struct
from hashlib import blake2b

_MASK = (1 << 64) - 1


def selects(seed: int, kind: str, room: int, visit: int, share: float) -> bool:
    """Return whether ``seed`` takes the visit number ``visit`` (1 for the first) of ``room`` at the site of ``kind``.

    About ``share`` (0 to 1) of many rooms or visits are taken. A visit taken at one share is taken at every larger share.
    """
    if share >= 1.0:
        return True
    words = struct.pack("<QQQ", seed & _MASK, room & _MASK, visit & _MASK)
    digest = blake2b(words + kind.encode(), digest_size=8, person=b"pdctl-fault").digest()
    return int.from_bytes(digest, "little") < share * 2.0**64
