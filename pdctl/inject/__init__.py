"""The client's side of faults: plan, place, watch and heal. The rank's side is :mod:`pdctl.faults`."""
