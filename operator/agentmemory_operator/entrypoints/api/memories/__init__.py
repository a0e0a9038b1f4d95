"""The routes of memories: store, search, change, forget; items, sessions and lineage."""
