"""Tombstones and receipts that an erasure writes."""

from typing import Any

import pytest

from agentmemory_operator.lifecycle.rules.erasure import ErasureReceipt, ErasureScope, MemoryCounts, erasure_tombstone
from agentmemory_operator.memories.rules.record import ORDER_KEY, TOMBSTONE_KEY, WINDOW_DUE_KEY

MEMORY = {"id": "m", "userId": "u", "content": "secret", "type": "fact", "rev": 3}
TOMBSTONE = {"id": "m", "userId": "u", "rev": 3, TOMBSTONE_KEY: 5}


@pytest.mark.parametrize("before", [MEMORY, TOMBSTONE])
def test_tombstone_has_a_new_revision(before: dict[str, Any]) -> None:
    """A concurrent writer that has read the earlier revision must not overwrite the tombstone."""

    assert erasure_tombstone(before, "e", 10)["rev"] == 4


@pytest.mark.parametrize(
    ("before", "is_due"),
    [
        (MEMORY, False),
        (MEMORY | {ORDER_KEY: 1}, True),
        (TOMBSTONE, False),
        (TOMBSTONE | {ORDER_KEY: 1}, False),
        (TOMBSTONE | {WINDOW_DUE_KEY: True}, True),
    ],
)
def test_window_is_due_if_session_is_unprocessed(before: dict[str, Any], is_due: bool) -> None:
    assert erasure_tombstone(before, "e", 10).get(WINDOW_DUE_KEY, False) is is_due


@pytest.mark.parametrize(
    "conditions",
    [{"is_whole": True}, {"zone": "sealed"}, {"older_than": 5}, {"zone": "sealed", "older_than": 5}, {}],
    ids=lambda conditions: ", ".join(conditions) or "filters",
)
def test_receipt_rebuilds_scope_with_all_its_conditions(conditions: dict[str, Any]) -> None:
    receipt = ErasureReceipt(
        **{"id": "e", "agent_id": "a", "user_hash": "h", "is_whole": False, "older_than": None, "until_ms": 9}
        | {"at": 9, "counts": MemoryCounts(), "sha256": "", "request_hash": ""}
        | conditions
    )

    assert receipt.is_repeatable is bool(conditions)
    assert receipt.rebuild_scope("u") == (ErasureScope(user_id="u", **conditions) if conditions else None)
