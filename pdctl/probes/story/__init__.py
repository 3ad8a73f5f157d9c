"""One room over all ranks of both sides, from the recordings alone."""
