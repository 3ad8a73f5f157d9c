"""Where each room is taken to be: by the formula, the bootstrap server, the prefill ranks and the decode ranks."""

GRACE_S = 2.0
"""How long a difference must have lasted before it is a finding; a younger one may be skew."""
