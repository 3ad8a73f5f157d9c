"""What can be seen and what it means: collectors do I/O, judges are pure (snapshots in, findings out)."""
