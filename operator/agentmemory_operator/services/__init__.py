"""Use cases: what happens in which order, over the ports."""
