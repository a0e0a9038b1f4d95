"""Resolves references in objects to clients of Qdrant servers, buckets and embedders, with the Secrets they need."""
