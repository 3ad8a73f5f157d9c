"""The sources of ranks: one module for each kind."""
