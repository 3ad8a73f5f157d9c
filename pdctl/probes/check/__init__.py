"""All probes one after the other, from cheap to intrusive: :mod:`.probe` runs them, :mod:`.judge` sums up, purely."""
