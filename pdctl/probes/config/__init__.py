"""Settings of both sides next to each other, and what does not go together."""
