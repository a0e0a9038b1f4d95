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
"""
