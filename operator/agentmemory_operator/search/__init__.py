"""Search: select candidate memories, score them, and estimate how exact the result is."""
