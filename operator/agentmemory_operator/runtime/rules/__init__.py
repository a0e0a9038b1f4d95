"""Decisions of the room `runtime`, without clock, file, socket or port."""
