"""Who is there, and what each rank does now."""
