"""End of memories: scheduled cleanups, `forget`, tombstones, and repeating erasures in copies of a collection.

A cleanup: `cleanup_schedule.py: CleanupSchedule` starts it, `removals.py: find_removals` reads the memories that are
due, `rules/cleanup_rules.py` decides, and `cleanup.py: Cleanup` removes them. A run that would remove more than the
object allows is withheld until it is approved.

A `forget`: `forget.py: ForgetUseCase` erases in one collection by `erase.py: Eraser`, then writes the receipt. Each
place with data of a memory needs a row here, its removal, and a memory in `fill` of
`tests/contract/lifecycle/test_forget.py`, which searches everything afterwards.

| place | removed by |
|---|---|
| the memory, its versions, its vectors | `memories/tombstone_writes.py: write_tombstones`, then `read_confirmed` |
| links of its chain | `memories/chains.py: complete` |
| its words in the keyword texts of its session | `memories/session_keywords.py: update_stale_texts` |
| proposals of a consolidation made from it | `erase.py` with `consolidation/rules/proposals.py` |
| relations and aliases of its scope | one point of the user (`entities/rules/sheet.py`), erased with the whole user |
| the name of the user | one point of the user (`memories/rules/profile.py`), erased with the whole user |
| counts and caches of this API process | `note_erased`, `agents/count_cache.py` |
| keys of its zones | `zones/key_lifecycle.py` |
| kept, restored and rebuilt collections | `erasure_replay.py`, by tombstones and receipt |

Invariants: an erasure that is killed is completed by its repetition. It leaves tombstones and a receipt in the
collection, so a copy that is restored later loses the memory too. No memory is removed by an empty condition, or by one
that only Qdrant evaluates.

Tests: `tests/unit/lifecycle`, `tests/contract/lifecycle`, `tests/faults`.
"""
