"""Which memories are candidates, how they are scored, and how sure the answer is."""
