"""Restores of snapshots into agents, by swap or in place, and the rollback of a restore.

1. `controller.py: RestorePasses` runs passes over a MemoryRestore on a queue of its own.
   `precedence.py: find_obstacle` decides which other work it waits for. `sources.py: RestoreSources` finds the file:
   Qdrant's own, a copy in S3, or a URL.
2. `restore_preparation.py: RestoreStarter` runs the checks (`rules/swap_checks.py`) and writes the names into the
   status. From then on no pass creates another collection for the agent.
3. `swap.py: SwapRestore` recovers the file into a new collection, claims it, verifies it, brings it to the desired
   state, and erases again what was forgotten since (`lifecycle/erasure_restore.py`). It records each step before it
   starts.
4. `collections/announce.py: AliasSwitch` moves the alias. Afterwards late links are repaired, and the replaced
   collection is kept for `keepPreviousHours`. `rollback.py: Rollback` moves the alias back.
5. `in_place.py: InPlaceRestore` moves no alias. It closes the agent, keeps a safety snapshot, recovers over the
   collection, and opens the agent again with a higher epoch.

An error ends a pass with the reason that `error_reasons.py: reason_of` returns for it; the module that finds a fault
names its reason (`SpecInvalid(Reason....)`). `rules/status.py` renders the status.

Invariants: a write that was pending in the snapshot is undone, because its caller may have been refused. What was
erased stays erased. No data of the live collection is lost before the copy is verified.

Tests: `tests/unit/restores`, `tests/contract/restores`, `tests/property/test_restoring.py`, `tests/faults`.
"""
