"""Decisions about snapshots, without clock, file, socket or port."""
