"""Search: select candidate memories, score them, and prove whether the result is exact."""
