"""Rebuilds: fill and verify a new collection, point the alias to it, and roll that back."""
