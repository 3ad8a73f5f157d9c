"""Faults inside a rank: what can be broken, for how long, and on which visits. Standard library and msgspec only."""
