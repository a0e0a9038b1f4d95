"""Store, read, link, compare, export and import memories: one Qdrant point per memory.

A write, `remember.py: Remember.store`:
1. `draft.py` checks the memories and embeds their texts in one call. Equal memories of a batch are stored once.
2. Stored memories with equal contents, and those next to them in their sessions, are read in one request
   (`session_rows.py`).
3. Each draft is written by its rule (`MemoryDraft.rule`). Plain memories share one upsert. A memory whose id is derived
   from its idempotency key, content or identity is inserted only if the id is free, and read back.
4. A memory that supersedes another goes through `chains.py: join`: inserted as pending, linked by compare-and-set,
   shown.
5. `session_keywords.py` rewrites the keyword texts of later memories of the session, and reads the sessions again.
   Another writer may have changed them: then it rewrites again. `due_marks.py` clears the marks of checked memories.

An item (a memory under a key) is one point with a derived id, written by compare-and-set (`item_store.py: Items`).
Waiting writes to the same key are merged. `tombstone_writes.py` is the only module that replaces points by tombstones:
it deletes the vectors in the same request and confirms that. `repair.py` completes writes that a crash interrupted.

Invariants: each write of a payload raises `rev`, except writes of `UNREVISED_KEYS` alone (`rules/comparison.py`). It
changes an existing point only by compare-and-set on `rev`. `FencedStore` gives each write its `updatedAt`. A tombstone
has no content and no vector. Numbers keep their exact text (`rules/exact_numbers.py`).

Tests: `tests/unit/memories`, `tests/contract/memories`, `tests/property`.
"""
