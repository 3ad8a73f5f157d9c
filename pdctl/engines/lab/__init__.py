"""How a rank of the embedded cluster is read and hooked."""
