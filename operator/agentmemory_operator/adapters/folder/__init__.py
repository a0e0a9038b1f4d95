"""Folders of the development stack: manifests, which replace a cluster, and data files."""
