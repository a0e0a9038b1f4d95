"""Collection ownership: one rule for the API and the operator."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    Owner,
    is_owner,
    marker_from_json,
    read_owner,
)
from agentmemory_operator.collections.rules.refusals import check_ownership
from agentmemory_operator.errors import CollectionUnavailable, NotOwned
from agentmemory_operator.restores.rules.swap_checks import check_origin
from agentmemory_operator.snapshots.rules.copy_verdict import compare_owner
from tests.support.spec.plans import desired_of, observed_of

OURS = ("cluster-1", "agents", "probe")
WORDS = ("", "cluster-1", "agents", "probe", "other")


@pytest.mark.parametrize("named", list(product(WORDS, repeat=3)))
def test_owner_must_match_completely(named: Owner) -> None:
    assert is_owner(named, OURS) == (named == OURS)


@pytest.mark.parametrize("missing", range(3))
def test_incomplete_owners_never_match(missing: int) -> None:
    named = tuple("" if place == missing else word for place, word in enumerate(OURS))

    assert not is_owner(named, named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {METADATA_KEY: None},
        {METADATA_KEY: "cluster-1"},
        {METADATA_KEY: ["clusterId", "namespace", "name"]},
        {METADATA_KEY: {"clusterId": 1, "namespace": ["agents"], "name": {"probe": True}}},
        {METADATA_KEY: {"clusterId": None, "namespace": "", "embedding": {}}},
    ],
)
def test_invalid_marker_has_no_owner(metadata: dict[str, Any] | None) -> None:
    assert read_owner(metadata) == ("", "", "")


def test_api_and_operator_read_same_owner() -> None:
    marker = {"clusterId": "cluster-1", "namespace": "agents", "name": "probe", "uid": "u"}

    assert read_owner({METADATA_KEY: marker}) == marker_from_json(marker).owner == OURS


@pytest.mark.parametrize("field", ["cluster_id", "namespace", "name"])
def test_incomplete_marker_is_refused_everywhere(field: str) -> None:
    desired = desired_of()
    assert desired.marker is not None
    half = replace(desired.marker, **{field: ""})

    with pytest.raises(NotOwned, match=r"an unknown owner|another namespace or cluster"):
        check_ownership(observed_of(replace(desired, marker=half)), desired)
    with pytest.raises(NotOwned, match=r"an unknown owner|another namespace or cluster"):
        check_origin(half, desired.marker, is_from_snapshot_object=False, takeover=None)
    assert compare_owner(half, half).is_good is False


@pytest.mark.parametrize(
    ("marker", "path"),
    [
        ("cluster-1", "agentmemory has"),
        ({"generation": "x"}, "agentmemory.generation"),
        ({"presetRevision": []}, "agentmemory.presetRevision"),
        ({"embedding": "openai"}, "agentmemory.embedding has"),
        ({"embedding": {"dimensions": "many"}}, "agentmemory.embedding.dimensions"),
        ({"embedding": {"model": ["m"]}}, "agentmemory.embedding.model"),
        ({"embedding": {"prefixes": 1}}, "agentmemory.embedding.prefixes"),
        ({"keyword": "english"}, "agentmemory.keyword has"),
        ({"keyword": {"window": {}}}, "agentmemory.keyword.window"),
    ],
)
def test_error_of_malformed_marker_names_the_field(marker: Any, path: str) -> None:
    with pytest.raises(CollectionUnavailable, match=f"metadata is malformed: {path}"):
        marker_from_json(marker)
