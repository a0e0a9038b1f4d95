"""Snapshots of agents: create, copy, verify, keep by retention rules, and remove them.

1. `schedule.py: SnapshotSchedule` creates a MemorySnapshot when one is due (`rules/due.py`).
2. `controller.py: SnapshotPasses` runs it. `snapshot_creation.py: SnapshotCreator` creates the file, and records it
   in the status before its next step. `copies.py: Copies` uploads the file to S3.
3. `verify.py: Verification` restores the snapshot into a scratch collection, and compares that collection with the
   live one (`copy_comparison.py: compare`). It writes the result into the condition Verified.
4. `retention.py: RetentionRuns` removes the snapshots that no rule keeps (`rules/retention.py`).

Invariants: the condition SnapshotFresh counts only verified snapshots, unless the agent sets `verify: None`. Retention
never removes the last verified snapshot that the server can restore, nor a snapshot that a restore or an agent needs.
If a deleted MemorySnapshot's policy is Delete, the operator deletes its files before it removes the finalizer. An
unavailable server delays the deletion by at most 300 s.

Tests: `tests/unit/snapshots`, `tests/contract/snapshots`, `tests/faults`.
"""
