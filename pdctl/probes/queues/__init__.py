"""Which rank's queue is out of step with its group: :mod:`.collect` looks, :mod:`.judge` decides, purely."""

STALLED_S = 10.0
"""How long one rank may keep its group waiting before that is a finding."""
CONFIRM = 3
"""Looks that a difference must last where no rounds are recorded."""
