"""Entities: names found in memories, the graph that links them, and the memories that a query's names activate."""
