"""Rebuilds: fill and verify a new collection, point the alias to it, and roll that back.

1. A pass finds an approved Rebuild and calls `controller.py: Rebuilds`. The call that creates the target writes the
   record into its metadata (`collections/rules/rebuild_record.py: RebuildRecord`).
2. `copy.py: CopyStep` copies every point. `catch_up.py: catch_up` copies what changed in the meantime: passes by
   `updatedAt`, then one that compares every point by `rev` and `updatedAt`.
3. `converge.py: ConvergeStep` brings the target to the desired state. `verify.py: VerifyStep` compares it with the
   source.
4. `move.py: MoveStep` announces the move, holds the writers for a last pass, and moves the alias.
5. `drain.py: DrainStep` copies points that arrived in the source too late. Newer writes in the target win.
6. `drain.py: mark_source_replaced` keeps the source for a rollback, or removes it.

A rollback is the same from step 2 on, with the collections exchanged. A plain collection without an alias is
replaced in `plain_swap.py`.

Invariants: until the move the source is authoritative. Every acknowledged write is in the target after the move, and
no chain has two heads. A record in the target's metadata lets another operator continue after any crash; a failure
before the move releases the writers at once.

Tests: `tests/unit/rebuilds`, `tests/contract/rebuilds`, `tests/property/test_moving.py`, `tests/faults`.
"""
