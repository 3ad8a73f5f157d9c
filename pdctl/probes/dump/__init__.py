"""What ranks say of themselves, as it is: queues with their requests, process groups."""
