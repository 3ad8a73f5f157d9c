"""How a rank of SGLang is read and hooked. Every difference between versions is in this package."""
