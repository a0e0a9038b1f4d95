"""Decisions about searches, without clock, file, socket or port."""
