"""Consolidation: a language model merges, links and classifies memories, within limits and with an undo.

1. `consolidation_schedule.py: ConsolidationSchedule` decides when a run is due, on a queue of its own. The id of a
   run is the same in every attempt.
2. `run.py: Consolidation` selects batches of one user (`rules/batch_selection.py`), renders them as data
   (`rules/prompt_material.py: render_material`), and calls the model within the limits.
3. `rules/model_findings.py: parse_findings` reads the answer. `rules/grounding.py: find_ungrounded` finds statements
   without support in a source. `rules/batch_plan.py: plan_batch` decides; `plan_executor.py: execute_plan` only
   executes.
4. `memories/predecessors.py: merge` makes one memory the successor of several, all or none. Facts that a person has
   to approve are stored as proposals (`rules/proposals.py`), which no search returns.
5. `undo.py: undo` deletes the results of a run that are still the newest version, so that the originals are visible
   again.

Invariants: text of memories is data in the prompt, never an instruction. A run that is killed continues under the
same id and stores nothing twice. Only visible memories of one user, outside privacy zones, are changed.

Tests: `tests/unit/consolidation`, `tests/contract/consolidation`.
"""
