"""Decisions about memories, without clock, file, socket or port."""
