"""What all rooms share: nouns, messages, names and paths. Standard library and msgspec only."""
