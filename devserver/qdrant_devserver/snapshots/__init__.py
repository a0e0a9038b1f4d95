"""Snapshots: create, fetch and recover them."""
