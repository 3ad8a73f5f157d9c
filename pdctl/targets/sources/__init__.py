"""Where ranks are found: one module for each kind of place."""
