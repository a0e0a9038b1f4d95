"""Reconciliation of one collection (observe, plan, refuse, apply, read back), and ownership of slugs by namespaces.

Terms:
- *slug*: name of an agent in Qdrant and in the API: `spec.agent`, or else the name of the AgentMemory.
- *alias*, *physical name*: clients use the alias `agent_memory_SLUG`. It points to the collection
  `agent_memory_SLUG__N`; a rebuild or restore creates the next N and moves the alias. A *plain* collection has the name
  of the alias itself.
- *marker*: owner and embedding of a collection, in the metadata of the collection.
- *placeholder*: empty collection that keeps the snapshots of a deleted collection available.
- *pass*: one run of the operator over one object.
- *Rebuild*: change that needs a new collection. It runs outside the passes (`rebuilds/`).

1. `claim_registry.py: ClaimRegistry.claim` records the namespace of a slug before its collection is created.
2. `reconcile.py: reconcile` observes the collection. `rules/plan.py: plan_changes` returns the changes to the desired
   one (`rules/desired.py`), and `rules/refusals.py: find_refusal` those that are withheld. The others are applied, and
   the collection is observed again: a change that the server accepted without effect fails the pass.
3. `reindex_slots.py: ReindexSlots` allows one reindex per connection at a time. `replication.py: replicate` makes at
   most one move of a replica in each pass.
4. Restores, rebuilds and rollbacks move the alias after an announcement (`announce.py`). The replaced collection is
   kept and later removed by `replaced_collection.py: remove_if_due`.

Invariants: a collection with the marker of another owner is changed only after a permitted takeover
(`rules/takeovers.py`). A lost collection that had points is not replaced by an empty one. Every change may be repeated.

Tests: `tests/unit/collections`, `tests/contract/collections`, `tests/operator/test_reconcile.py`.
"""
