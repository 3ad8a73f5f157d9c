"""What is held though its request is gone: slots, KV space, rooms, requests of a later pipeline stage."""
