"""The step loop over the fake backend: what a fault of one task leaves alone."""
