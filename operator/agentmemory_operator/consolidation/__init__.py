"""What a language model makes of memories: what it is shown, and what of its answers counts."""
