"""A snapshot brought back, by swap or in place, and the way back from that."""
