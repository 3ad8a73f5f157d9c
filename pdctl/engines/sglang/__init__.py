"""How SGLang is read and hooked, 0.5.10 and later. What differs between its versions is in :mod:`.seams` alone."""
