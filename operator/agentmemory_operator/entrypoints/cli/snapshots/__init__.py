"""Commands for snapshots and restores."""
