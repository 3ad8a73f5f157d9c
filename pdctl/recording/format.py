"""Layout of a recording, format version 1. All numbers are little-endian; offsets are in bytes from the file's start.

    0      header        one page area of HEADER_SIZE bytes: fixed fields, counters, identity (JSON)
    768    visits        16 bytes a queue: turns so far, and when the last was
    1024   repeats       32 bytes a stream: how often the run in its live cells has been repeated since
    16384  live cells    MAX_STREAMS x 2 round records: the run each stream is in, written alternately
    …      rounds ring   immutable round records (runs that have ended)
    …      items ring    item records, referred to by round records
    …      events ring   immutable event records

A *stream* is one queue polled over one group. A round record is a *run*: ``repeat`` consecutive equal rounds.
"""

from __future__ import annotations

import struct

MAGIC = b"PDCTLREC"
VERSION = 1
HEADER_SIZE = 16384
IDENTITY_OFFSET = 2048
IDENTITY_MAX = HEADER_SIZE - IDENTITY_OFFSET
MAX_STREAMS = 16

# magic, version, header size, file size, start wall ns, start mono ns, pid, state, process start ticks,
# rounds offset, rounds capacity, items offset, items capacity, events offset, events capacity
FIXED = struct.Struct("<8sIIQqqIIQQQQQQQ")
STATE_OFFSET = 8 + 4 + 4 + 8 + 8 + 8 + 4
STATE_WRITING, STATE_CLOSED, STATE_STOPPED = 1, 2, 3
STATE_NAMES = {STATE_WRITING: "writing", STATE_CLOSED: "closed", STATE_STOPPED: "stopped"}
STATE = struct.Struct("<I")

# identity length, crc32 of the identity's bytes; the bytes follow at IDENTITY_OFFSET
IDENTITY_OFFSET_FIELDS = 256
IDENTITY_FIELDS = struct.Struct("<II")

# ticks, monotonic ns of the last tick; one 16-byte store, each half aligned to 8
PULSE_OFFSET = 512
PULSE = struct.Struct("<Qq")

# per queue code: turns in which it was polled or found empty, with EMPTY_BIT set when the last one found it empty; its time
VISITS_OFFSET = 768
VISITS = struct.Struct("<Qq")
EMPTY_BIT = 1 << 63

# per stream: its repeat word when a round was entered that is like the one before, when that was, the repeat word when it
# was applied. A repeat word is the low 16 bits of the live cell's seq in its upper 16 bits, the run's repeat count in the
# other 48. A round that is like the one before is three 8-byte stores and nothing else.
REPEATS_OFFSET = 1024
REPEATS = struct.Struct("<QqQ8x")
REPEAT_BITS = 48

ROUND_SIZE = 128
# seq, stream, queue code, group index, phase | flags << 4, repeat, t_enter, t_done: the part that changes in a repeat
ROUND_HEAD = struct.Struct("<QBBBBQqq")
# n, n_after, ordinal, visit, t_first, list hash, after hash, items start, items count, items crc
ROUND_TAIL = struct.Struct("<IIQQqQQQII")
ROUND_DTYPE = [
    ("seq", "<u8"),
    ("stream", "u1"),
    ("queue", "u1"),
    ("group", "u1"),
    ("flags", "u1"),
    ("repeat", "<u8"),
    ("t_enter", "<i8"),
    ("t_done", "<i8"),
    ("n", "<u4"),
    ("n_after", "<u4"),
    ("ordinal", "<u8"),
    ("visit", "<u8"),
    ("t_first", "<i8"),
    ("hash", "<u8"),
    ("after_hash", "<u8"),
    ("items_start", "<u8"),
    ("items_count", "<u4"),
    ("items_crc", "<u4"),
    ("pad", "V24"),
    ("crc", "<u4"),
]
ROUND_BODY_SIZE = ROUND_HEAD.size + ROUND_TAIL.size
ROUND_CRC = struct.Struct("<I")
ROUND_CRC_OFFSET = 124
FLAG_FULL = 1

ITEM_SIZE = 32
# room, found, slot, index, local, gated, reduced, action, flags
ITEM = struct.Struct("<QQiIBBBBB3x")
ITEM_DTYPE = [
    ("room", "<u8"),
    ("found", "<u8"),
    ("slot", "<i4"),
    ("index", "<u4"),
    ("local", "u1"),
    ("gated", "u1"),
    ("reduced", "u1"),
    ("action", "u1"),
    ("flags", "u1"),
    ("pad", "V3"),
]
ITEM_FOUND_KNOWN = 1

EVENT_SIZE = 128
TEXT_BYTES = 72
"""Bytes of an event's text that a recording keeps; a longer request id is cut there."""
# seq, mono ns, kind, queue code, pad, slot, room, a, b, text (utf-8, zero padded, cut at 72 bytes)
EVENT = struct.Struct(f"<QqBBHiQqq{TEXT_BYTES}s")
EVENT_CRC_OFFSET = 124
NO_QUEUE = 255

LIVE_OFFSET = HEADER_SIZE
RINGS_OFFSET = LIVE_OFFSET + MAX_STREAMS * 2 * ROUND_SIZE
DEFAULT_SIZE = 16 * 1024 * 1024
MIN_SIZE = 256 * 1024
MAX_SIZE = 2 << 30

# What no recording reaches. Below, times of two ranks can be added and subtracted in 64 bits: clocks on the wall until 2116,
# monotonic ones for 36 years, and numbers that are counted up.
MAX_WALL_NS = 1 << 62
MAX_MONO_NS = 1 << 60
MAX_COUNT = 1 << 60


def layout(size: int) -> tuple[int, int, int, int, int, int]:
    """Return (rounds offset, rounds capacity, items offset, capacity, events offset, capacity) for a file of ``size`` bytes.

    A quarter of the space is for rounds, half for items, a quarter for events; capacities count records.
    """
    space = size - RINGS_OFFSET
    rounds_cap = space // 4 // ROUND_SIZE
    events_cap = space // 4 // EVENT_SIZE
    items_cap = (space - rounds_cap * ROUND_SIZE - events_cap * EVENT_SIZE) // ITEM_SIZE
    rounds_off = RINGS_OFFSET
    items_off = rounds_off + rounds_cap * ROUND_SIZE
    events_off = items_off + items_cap * ITEM_SIZE
    return rounds_off, rounds_cap, items_off, items_cap, events_off, events_cap


def kept_text(text: str) -> str:
    """Return what a recording keeps of an event's text; a character that is cut is U+FFFD."""
    return text.encode("utf-8", "replace")[:TEXT_BYTES].decode("utf-8", "replace")
