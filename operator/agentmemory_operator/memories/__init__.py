"""Store, read, link, compare, export and import memories: one Qdrant point per memory."""
