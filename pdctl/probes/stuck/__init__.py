"""What waits, for what, since when, and what will end the wait."""

STUCK_S = 30.0
"""From this age on a request that nothing moves and nothing ends is a finding."""
ORDER = ("age", "queue", "rank")
"""What waiting requests can be sorted by."""
UNHEARD_S = 5.0
"""How long a message from the other side may be on its way before it counts as lost: on a busy machine, seconds."""
