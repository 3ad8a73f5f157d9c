"""Find the ranks, and ask them."""
