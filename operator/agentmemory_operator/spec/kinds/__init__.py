"""The kinds: what an author writes, what a status says, and what admission refuses."""
