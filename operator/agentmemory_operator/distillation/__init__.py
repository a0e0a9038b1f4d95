"""Distillation: store the turns of conversations, and let a language model extract memories from them.

1. `conversations.py: store_conversation` stores each turn as a memory under a predictable id. The last turn lists
   the turns that the model has not read yet.
2. `run_queue.py: DistillationQueue` runs in the background of the API. `runs.py: DistillationRun` takes a lease on
   the last turn, calls the model with the turns as data, checks its answer (`rules/model_output.py: parse_facts`),
   and stores the accepted facts. A fact with a number, date or name that no turn contains waits for an approval.
3. `session_end.py: end_session` requests a run over the turns and working memories of a session that ends.
4. A chain with many versions is collapsed into one text that becomes its newest version
   (`consolidation/collapse.py`).

Invariants: a turn is stored before it is distilled, so a failed run loses none. A run that is killed is repeated by the
sweep; at each place of its answers it stores at most one memory. After three unusable answers the turns are marked as
done.

Tests: `tests/unit/distillation`, `tests/contract/distillation`.
"""
