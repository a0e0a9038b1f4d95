"""Buckets of S3-compatible storages."""
