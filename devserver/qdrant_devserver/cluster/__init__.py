"""State of a running server, and the simulated cluster of the peers that share one data folder."""
