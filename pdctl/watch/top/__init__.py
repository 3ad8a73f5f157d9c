"""``top``: the state of ranks, groups and findings on one screen, and what is behind each of them."""
