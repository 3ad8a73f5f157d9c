"""Holds what pdctl finds on labs against what was done to them."""
