"""Qdrant over its REST API: aiohttp for points, the official client's routes for control calls."""
