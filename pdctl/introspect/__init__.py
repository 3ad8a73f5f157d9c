"""Read a rank without an agent from outside: pdctl reads its memory, and runs no code in the rank.

``memory`` copies bytes. ``layouts`` and ``objects`` decode CPython's objects. ``proxy`` lets the engine's readers use them like
local objects. ``snapshot`` copies one moment of a running rank. ``permissions`` explains why the kernel refuses.
"""
