"""Search for memories, with a proof of exactness on request; counts of memories and of users."""
