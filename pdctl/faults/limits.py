"""Limits that no option widens. Seconds."""

MAX_TTL_S = 900.0
DEFAULT_TTL_S = 60.0
LEASE_S = 3.0
"""A client's lease: it renews about once a second, so three missed beats end its fault."""
