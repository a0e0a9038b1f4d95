"""The routes of memories, items, sessions, entities and erasure, with their request models."""
