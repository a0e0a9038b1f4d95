"""The verbs of snapshots and restores."""
