"""What can be broken on purpose and for a while. :mod:`.table` lives in the rank, the rest with the client."""
