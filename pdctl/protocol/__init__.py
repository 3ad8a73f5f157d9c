"""What everybody shares: nouns, messages, names and places. Standard library and msgspec only."""
