"""Decisions about restores, without clock, file, socket or port."""
