"""Folder of manifests that replaces a cluster in development."""
