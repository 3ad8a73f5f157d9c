"""Which ranks there are, and how they are asked."""
