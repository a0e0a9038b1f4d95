"""Decisions about rebuilds, without clock, file, socket or port."""
