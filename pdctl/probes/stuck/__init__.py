"""What waits, for what, since when, and what will end the wait."""

STUCK_S = 30.0
"""From this age on a request that nothing moves and nothing ends is a finding."""
ORDER = ("age", "queue", "rank")
"""What waiting requests can be sorted by."""
