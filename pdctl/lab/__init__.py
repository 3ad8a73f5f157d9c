"""An embedded PD cluster: real processes, real Gloo groups, real transfers, and each of five engine fixes as a switch."""
