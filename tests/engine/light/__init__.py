"""Ranks with SGLang's own queues and polls, and neither model nor transfer; see :mod:`.rank`."""
