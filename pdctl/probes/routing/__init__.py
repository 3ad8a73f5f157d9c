"""Where each room is taken to be: by the formula, the bootstrap server, the prefill ranks and the decode ranks."""
