"""Restores of snapshots into agents, by swap or in place, and the rollback of a restore.

1. `controller.py: RestorePasses` runs passes over a MemoryRestore on a queue of its own.
   `precedence.py: find_obstacle` decides which other work it waits for. `sources.py: RestoreSources` finds the file:
   Qdrant's own, a copy in S3, or a URL.
2. `restore_preparation.py: RestoreStarter` runs the checks (`rules/swap_checks.py`) and writes the names into the
   status. From then on no pass creates another collection for the agent.
3. `swap.py: SwapRestore` recovers the file into a new collection, writes the agent's ownership marker there, verifies
   it, and changes it to what the AgentMemory specifies. Then it repeats the erasures since the snapshot
   (`lifecycle/erasure_restore.py`). Each step is recorded before it starts.
4. `collections/announce.py: AliasSwitch` moves the alias. Afterwards late links are repaired, and the replaced
   collection is kept for `keepPreviousHours`. `rollback.py: Rollback` moves the alias back.
5. `in_place.py: InPlaceRestore` moves no alias. It closes the agent (the API answers 503), creates a safety snapshot,
   and recovers over the live collection. Then it opens the agent with a higher epoch (`collections/rules/epochs.py`).

A permanent error fails the restore with the reason that `error_reasons.py: reason_of` returns for it; the module that
finds a fault names its reason (`SpecInvalid(Reason....)`). `rules/status.py` renders the status.

Limits of time (`job.py: RestorePeriods`, applied by `controller.py`): a transient error is retried, but one that occurs
more than `patience_s` after the start fails the restore with `DeadlineExceeded`. So does a restore that is older than
`deadline_s` before its next step. A MemorySnapshot that has been missing for `source_s` ends it as `SnapshotNotFound`.

Invariants: a version that is pending in the snapshot is abandoned, because its writer may have received an error.
Erased memories stay erased. Until the restored collection is verified, its previous contents are kept: in the replaced
collection, or in a verified safety snapshot.

Tests: `tests/unit/restores`, `tests/contract/restores`, `tests/property/test_restoring.py`, `tests/faults`.
"""
