"""Qdrant's REST API in one process, on the engine qdrant-edge; a server for development and tests."""

__version__ = "0.1.0"
