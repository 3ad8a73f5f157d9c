"""Which rank's queue is out of step with its group: :mod:`.collect` looks, :mod:`.judge` decides, purely."""
