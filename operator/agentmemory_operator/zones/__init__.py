"""Encryption keys of privacy zones: create, wrap, rotate and destroy them, outside every collection and snapshot."""
