"""Search for memories, with a proof of exactness on request; counts of memories and of users.

A search, `search.py: SearchService.search`:
1. `requests.py: find_request_errors` checks a request, `resolve_ranking` applies its overrides. The query is embedded.
2. `eligible.py: find_eligible` builds the filter and counts the *eligible* memories, which match it. The filter is
   `memories/rules/filters.py: visible_filter`, without zones whose memories have no vector.
3. `rules/candidates.py: plan_candidates` chooses the *candidates*: all eligible memories if they are few, else the
   nearest ones, and the nearest of each class that may rank high (`rules/candidate_classes.py`). `scoring.effort`
   selects the numbers (`BUDGETS`). `rules/hybrid.py: build_hybrid_queries` adds lists by words and by names.
4. One request to Qdrant prefetches the lists and scores their union by a formula (`build_scoring_template`).
   `rules/score.py: compute_score` evaluates the same expression tree (`rules/score_trees.py`) in Python.
5. Points below the threshold are removed. Then `results.py` reranks, caps sessions and reads neighbours.

With `explain` the same request repeats the lists by full scans and reads the first memory beyond each list.
`rules/exactness.py: is_proven_complete` bounds the score of every memory outside the lists. `exact` is True if none can
reach the results and the index found the same ones. False means that there is no proof.

`context.py: ContextService.build` uses a search, the newest facts and the last turns of a session for one text within a
number of tokens.

If a memory is missing from the results, repeat the search with `explain`. Check in this order:

| cause | shown by | decided in |
|---|---|---|
| not eligible: owner, state, filters, zone | `eligible`; states: `counts.py: count_memories` | `find_eligible` |
| no candidate: too far away, or below `minSimilarity` | `scored` is below `eligible` | `plan_candidates` |
| below the threshold | `below_threshold`, `removed_by_threshold` | `_SearchSetup.filter_points` |
| excluded by the model Priority | `scored` counts it, `below_threshold` does not | `EXCLUDED_SCORE` |
| behind `top_k`, reranked, too many of its session | a larger `top_k`; `rerank`; `left_out` | `results.py` |

Invariants: a search returns no tombstone and no pending memory. The scores of Qdrant and of `compute_score` differ by
at most 1e-5, relative to the score if that is above 1.

Tests: `tests/unit/search`, `tests/contract/search`, `tests/property/test_exactness.py`, `tests/api/test_scoring.py`.
"""
