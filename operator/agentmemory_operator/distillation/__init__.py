"""Conversations: their turns are stored as they were said, and a language model makes memories of them."""
