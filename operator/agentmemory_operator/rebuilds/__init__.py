"""Rebuilds: fill and verify a new collection (the target), and point the alias of the current one (the source) to it.

1. A pass over an AgentMemory finds an approved rebuild and calls `controller.py: Rebuilds`. The call that creates the
   target writes the rebuild's record into its metadata (`collections/rules/rebuild_record.py: RebuildRecord`).
2. `copy.py: CopyStep` copies every point. `catch_up.py: catch_up` copies what changed in the meantime: passes by
   `updatedAt`, then one that compares every point by `rev` and `updatedAt`.
3. `converge.py: ConvergeStep` brings the target to the desired state. `verify.py: VerifyStep` compares it with the
   source.
4. `move.py: MoveStep` announces the move when the verification starts. Then it holds the writers (their requests wait)
   for a last pass, and moves the alias.
5. `drain.py: DrainStep` copies writes that reached the source after that last pass. Newer writes in the target win.
6. `drain.py: mark_source_replaced` keeps the source for a rollback, or removes it if `keepPreviousHours` is 0.

A rollback is the same from `catch_up` on, with the collections exchanged. A plain collection, which has the name of the
alias itself, is replaced in `plain_swap.py`.

Invariants: until the move the source is authoritative. Every acknowledged write is in the target after the move, and
no chain of versions has two heads (`memories/chains.py`). A record in the target's metadata lets another operator
continue after any crash. A failure before the move releases the writers immediately, unless a plain collection may
already be deleted.

Tests: `tests/unit/rebuilds`, `tests/contract/rebuilds`, `tests/property/test_moving.py`, `tests/faults`.
"""
