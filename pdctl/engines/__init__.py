"""How an engine is read and hooked. One package an engine; everything else of pdctl is engine-neutral."""
