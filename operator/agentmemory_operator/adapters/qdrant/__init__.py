"""Qdrant over plain HTTP."""
