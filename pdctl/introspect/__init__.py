"""Reads a rank that has no agent, from outside: its memory as the kernel shows it, nothing runs in the rank.

``memory`` copies bytes, ``layouts`` and ``objects`` know CPython's objects, ``mirror`` lets the engine's readers walk them as
if they were here, ``frozen`` makes a copy of one moment of a rank that moves, ``permissions`` says why the kernel refuses.
"""
