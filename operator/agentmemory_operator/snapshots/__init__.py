"""Snapshots: made, copied, compared with the live collection, proven, kept, removed."""
