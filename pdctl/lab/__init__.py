"""An embedded PD cluster: real processes, groups and transfers, and the engine's fixes as switches."""
