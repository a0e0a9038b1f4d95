"""Passes over AgentMemory and QdrantConnection objects, and code of `plan`, `orphans`, `approve` and `uninstall`.

A pass reads one object, changes Qdrant to match its spec, and writes the result into its status.

1. A queue (`runtime/work_queue.py: WorkQueue`) calls `agent_memory_pass.py: Passes.run`, which returns the seconds
   until the next pass (`periods.py: Periods`).
2. A QdrantConnection: `connection_pass.py: ConnectionPasses.run` probes the server. If the server responds again, or
   the status changed in more than its capacity, it requests passes over the AgentMemories that use the connection.
3. An AgentMemory: the docstring of `agent_memory_pass.py` lists the steps. `deletion.py: Deletion` handles a deleted
   object. Otherwise `collections/reconcile.py: reconcile` changes the collection, unless the object is suspended.
   `bootstrap.py: check_creation` decides whether an empty collection may be created.
4. `rules/status.py: converged_status` or `failed_status` builds the status. `status_writer.py: StatusWriter` adds the
   fields of other rooms and writes it. `events.py: pass_events` chooses the events.

The passes over snapshots and restores are in `snapshots` and `restores`.

Commands: `inspection.py: preview_passes` plans as a pass does, and applies nothing. `find_orphans` lists collections
without an owner. `approve_all.py` approves a preset revision for many objects, `uninstall.py: Uninstall` deletes all.

Invariants: a pass may be stopped at any point, and the next one continues from the observed state. A status is written
only if it differs. A pass over a suspended object does not reconcile its collection, even if the object is deleted. An
unreachable server delays a deletion by at most `Periods.release_s`; after that the collection is kept.

Tests: `tests/unit/controllers`, `tests/contract/controllers`, and `tests/operator` with a real API server.
"""
