"""Requirements for restoring a snapshot into the live collection."""

from dataclasses import replace

import pytest

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.restores.rules.in_place_steps import (
    check_equal_layout,
    check_replaceable,
    rollback_name,
    safety_name,
)
from agentmemory_operator.spec.presets.table import Hnsw
from tests.support.spec.plans import desired_of

LIVE = replace(desired_of(), datatype="Float32", memory="Cached", shard_number=2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"size": 4}, "embedding.dimensions 4 instead of"),
        ({"distance": "Dot"}, "index.distance Dot instead of Cosine, and cannot be restored"),
        ({"datatype": "Float16"}, "index.vectors.datatype Float16 instead of Float32"),
        ({"memory": "Cold"}, "index.vectors.memory Cold instead of Cached"),
        ({"shard_number": 1}, "index.sharding.shardNumber 1 instead of 2"),
        ({"has_keyword": not LIVE.has_keyword}, "index.keyword.enabled"),
    ],
)
def test_different_layout_is_rejected_by_field(changes, named) -> None:
    with pytest.raises(SpecInvalid, match="mode Swap") as raised:
        check_equal_layout(LIVE, replace(LIVE, **changes))

    assert raised.value.reason == "SnapshotUnfit"
    assert named in str(raised.value)


@pytest.mark.parametrize(
    "changes", [{}, {"hnsw": Hnsw(m=99)}, {"quantization": None}, {"indexes": ()}, {"strict_mode": ()}]
)
def test_other_settings_may_differ(changes) -> None:
    check_equal_layout(LIVE, replace(LIVE, **changes))


def test_missing_collection_is_rejected() -> None:
    with pytest.raises(SpecInvalid, match="mode Swap"):
        check_replaceable(None)


def test_names_tell_what_they_are_of() -> None:
    assert (safety_name("undo", 1), safety_name("undo", 2)) == ("undo-before", "undo-before-2")
    assert rollback_name("undo") == "undo-rollback"
