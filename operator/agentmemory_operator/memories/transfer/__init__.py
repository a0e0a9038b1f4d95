"""Memories of a user as lines, out and in again: under their ids, with their links."""
