"""All probes one after the other, from cheap to intrusive: :mod:`.stages` runs them, :mod:`.judge` sums up, purely."""
