"""Recorded polls run again, and the search for the order of events that breaks a group: on workers, or in a model."""
