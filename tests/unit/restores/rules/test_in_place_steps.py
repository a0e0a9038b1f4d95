"""Requirements for restoring a snapshot into the live collection."""

import re
from dataclasses import replace
from functools import partial

import pytest

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.restores.rules.in_place_steps import (
    check_equal_layout,
    check_replaceable,
    rollback_name,
    safety_name,
)
from agentmemory_operator.restores.safety_snapshot import build_safety_manifest
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.kinds.model_base import OBJECT_NAME_PATTERN
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


def test_long_names_yield_valid_names() -> None:
    long_names = [f"{'a' * 234}.{letter * 18}" for letter in "bc"]
    derived = [build(name) for name in long_names for build in (partial(safety_name, attempt=2), rollback_name)]
    label = build_safety_manifest(Key("MemorySnapshot", "agents", "s"), long_names[0])["metadata"]["labels"]

    assert len(set(derived)) == 4
    assert all(len(name) <= 253 and re.fullmatch(OBJECT_NAME_PATTERN, name) for name in derived)
    assert [len(value) for value in label.values()] == [63]
