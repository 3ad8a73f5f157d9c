"""Readers and hooks for SGLang, 0.5.10 and later. Only :mod:`.seams` knows the differences between versions."""
