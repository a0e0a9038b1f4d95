"""Snapshots: made, fetched, and recovered from."""
