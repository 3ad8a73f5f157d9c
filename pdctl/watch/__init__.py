"""Look again and again: :mod:`.eye` looks, :mod:`.incidents` says what began and what is over, purely."""
