"""Restores of snapshots into agents, by swap or in place, and the rollback of a restore."""
