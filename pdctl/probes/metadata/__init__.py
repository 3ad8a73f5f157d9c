"""Whose room is in which metadata slot, and whether the way it got there is safe."""
