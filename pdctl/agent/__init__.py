"""What runs inside a rank: recorder taps, control socket, and the ways in (plug-in, start-up hook)."""
