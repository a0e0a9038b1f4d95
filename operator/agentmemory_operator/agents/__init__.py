"""The retrieval API's agents: authorisation of callers, the table of agents, and fencing against moves of an alias.

One use of an agent:
1. `directory.py: AgentDirectory.open` returns the agent in the current state of its object: ranking from the spec,
   embedding from the metadata of the collection. The watch feeds the directory (`feed.py: ApiFeed`).
2. The store of the agent is a `fenced_store.py: FencedStore` over the connection's points.
3. If the collection was replaced before anything was written, `fenced_store.py: retry_if_moved` opens the agent
   again and repeats the use. After the first write the answer is 504, because the write may be in either collection.
   The docstring of `errors.py: OutcomeUnknown` lists the other causes.

A move of the alias (`collections/announce.py`; for a rebuild `rebuilds/move.py`) notifies no API process. `fence.py`
has the protocol: the operator announces the move in the metadata, waits, pauses new writes, and moves the alias. An API
process relies on its last read of the metadata for a lease, shorter than the wait. Neither uses a watch or wall clock.

Invariants: every acknowledged write is in the collection behind the alias after a rebuild. A result comes from the
collection whose model made the query's vector. Authorisation is decided before anything is read
(`authorisation.py`).

Tests: `tests/unit/agents`, `tests/property/test_moving.py`, `tests/api/test_alias_moves.py`.
"""
