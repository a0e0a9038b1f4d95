"""Startup, watches, background tasks and shutdown of the operator process."""
