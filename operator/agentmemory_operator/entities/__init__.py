"""Entities: the names that memories speak of, how they hang together, and which memories a query's names lead to."""
