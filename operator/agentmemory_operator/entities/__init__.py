"""Entities: names found in memories, the graph that links them, and the memories that a query's names activate.

A *scope* is a user or a shared scope. Names are compared *folded*: without regard to case and spacing
(`memories/rules/entities.py: fold`). The *sheet* of a scope stores its aliases and typed relations.

1. A write finds the names in a memory's text and stores them with the memory (`memories/entity_extraction.py`).
   `rules/extract.py: extract_entities` uses lists (`rules/lists.py`) and spelling (`rules/name_phrases.py`), no model.
2. `graphs.py: EntityGraphs.read` returns the graph of a scope, built from its newest 2,000 memories and its sheet
   (`rules/graph.py: build_graph`). A cached graph is used for at most 10 s, or until this process writes to
   the scope.
3. A search passes these graphs and its query to `rules/activation.py: find_by_query`. The memories that it returns are
   a further list of candidates, and their activation is a signal of the score (`search/rules/hybrid.py`).
4. `sheets.py: change_sheet` changes a sheet. Consolidations call it by `put_aliases` and `put_relations`, requests by
   `put_relation`, `browse.py: rename_entity` and `browse.py: merge_entity`, and imports directly.

Invariants: a sheet is changed only by compare-and-set, so no concurrent change is lost. Links and activation stay
within one scope. Memories in a privacy zone have no entities and are in no graph. A sheet is one point of the user,
which searches treat as a tombstone, and which is erased with the whole user.

Tests: `tests/unit/entities`, `tests/contract/entities`, `tests/api/test_entities.py`.
"""
