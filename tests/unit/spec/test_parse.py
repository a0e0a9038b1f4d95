"""Parsing of manifests: as strict as admission, with all errors, without crashes."""

import contextlib
import math
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import (
    find_errors,
    parse_agent_memory,
    parse_connection,
    parse_restore,
    parse_snapshot,
)
from tests.support.spec.golden import ManifestCase, load_cases, manifest

PARSERS: dict[str, Callable[..., AgentMemory | QdrantConnection]] = {
    "AgentMemory": parse_agent_memory,
    "QdrantConnection": parse_connection,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    (
        *("agent", "preset", "embedding", "provider", "dimensions", "baseURL", "index", "hnsw", "m", "efConstruct"),
        *("quantization", "type", "quantile", "types", "name", "halfLifeDays", "decay", "scoring", "weights"),
        *("similarity", "recency", "utility", "candidates", "connectionRef", "profile", "expectedMemories", "vectors"),
    )
)
NEAR_SPECS = st.recursive(
    JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=5) | st.lists(inner, max_size=3), max_leaves=15
)


def refusal(document: Any, **arguments: Any) -> str:
    """Return the message of the SpecInvalid that parsing an AgentMemory raises."""
    with pytest.raises(SpecInvalid) as error:
        parse_agent_memory(document, **arguments)
    assert error.value.reason == "InvalidSpec"
    return str(error.value)


@pytest.mark.parametrize("case", load_cases("bad.yaml"), ids=lambda case: case.name)
def test_bad_manifest_is_rejected_with_its_field(case: ManifestCase) -> None:
    with pytest.raises(SpecInvalid) as error:
        PARSERS[case.document["kind"]](case.document)

    assert [word for word in case.words if word not in str(error.value)] == [], str(error.value)


@pytest.mark.parametrize("case", load_cases("good.yaml"), ids=lambda case: case.name)
def test_good_manifest_is_accepted(case: ManifestCase) -> None:
    parsed = PARSERS[case.document["kind"]](case.document)

    assert parsed.metadata.name == case.document["metadata"]["name"]


def test_table_has_60_bad_manifests() -> None:
    assert len({case.name for case in load_cases("bad.yaml")}) >= 60


def test_all_errors_are_reported_at_once() -> None:
    weights = {"similarity": 0.5, "recency": 0.3, "utility": 0.3}
    message = refusal(manifest(preset="brian", scoring={"weights": weights}, index={"hnsw": {"m": 2}}))

    assert re.findall(r"(?:^|; )(spec[\w.]*): ", message) == [
        "spec.preset",
        "spec.index.hnsw.m",
        "spec.scoring.weights",
    ]


def test_message_contains_value_and_remedy() -> None:
    assert refusal(manifest(scoring={"limit": 0})) == "spec.scoring.limit: 0: give a whole number 1..10000"


def test_wrong_type_hides_rules_of_the_parent() -> None:
    message = refusal(manifest(embedding={"provider": "none", "dimensions": "8"}))

    assert message == 'spec.embedding.dimensions: "8": give a whole number 1..65536'


def test_wrong_entry_is_reported_once() -> None:
    message = refusal(manifest(types=[{"name": "fact", "halfLifeDays": 0}]))

    assert message == "spec.types[0].halfLifeDays: 0.0: give a number 0.001..36500"


def test_errors_above_20_are_counted() -> None:
    message = refusal(manifest(**{f"field{number}": 1 for number in range(50)}))

    assert message.count("unknown field") == 20
    assert message.endswith("; and 30 more")


@pytest.mark.parametrize(
    ("before", "after"), [({"agent": "a"}, {"agent": "b"}), ({}, {"agent": "b"}), ({"agent": "a"}, {})]
)
def test_agent_is_immutable(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert "agent cannot change" in refusal(manifest(**after), old=manifest(**before))


def test_agent_may_equal_the_name() -> None:
    assert parse_agent_memory(manifest(agent="probe"), old=manifest()).slug == "probe"


def copying_to(prefix: str) -> dict[str, Any]:
    return manifest(snapshots={"storage": {"s3": {"bucket": "copies", "prefix": prefix}}})


@pytest.mark.parametrize("prefix", ["..", ".", "a/..", "../a", "a/../b", "a/./b", "./a"])
def test_dot_segment_is_rejected_in_new_objects_only(
    prefix: str,
) -> None:
    (error,) = find_errors(copying_to(prefix))
    assert error.field == "spec.snapshots.storage.s3.prefix"
    assert "remove it" in error.message
    storage = parse_agent_memory(copying_to(prefix)).spec.snapshots
    assert storage is not None
    assert storage.storage is not None
    assert storage.storage.s3.prefix == prefix


@pytest.mark.parametrize("prefix", ["...", ".a", "a..", "a/..b/.c", "a.b/c"])
def test_dots_within_a_segment_are_valid(prefix: str) -> None:
    assert find_errors(copying_to(prefix)) == []


@pytest.mark.parametrize("prefix", ["a/", "/a", "a//b", "a%2fb", "a\\b", "a\n", "a b", "\N{FULLWIDTH SOLIDUS}"])
def test_ambiguous_prefix_is_rejected(prefix: str) -> None:
    """Storages read empty segments and these characters differently."""
    assert "spec.snapshots.storage.s3.prefix" in refusal(copying_to(prefix))


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("MemoryRestore", {"target": {"name": "a"}, "source": {"s3": {}}}, "spec.source.s3.key"),
        ("MemorySnapshot", {"agentMemoryRef": {"name": "a"}, "import": {"s3": {}}}, "spec.import.s3.key"),
    ],
)
def test_dot_segment_in_a_key_is_reported(kind: str, spec: dict[str, Any], field: str) -> None:
    (location,) = (source["s3"] for source in spec.values() if "s3" in source)
    location |= {"bucket": "copies", "key": "a/../b"}
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    assert [found.field for found in find_errors(document)] == [field]
    assert (parse_snapshot if kind == "MemorySnapshot" else parse_restore)(document).metadata.name == "one"


@pytest.mark.parametrize("old", [{}, {"spec": 3}, [], "x", {"spec": {"agent": None}, "metadata": None}])
def test_invalid_old_object_does_not_crash(old: Any) -> None:
    assert parse_agent_memory(manifest(), old=old).slug == "probe"


def test_metadata_and_status_are_parsed() -> None:
    document = manifest()
    document["metadata"] |= {
        "namespace": "agents",
        "uid": "1-2",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "2026-11-21T03:00:00Z",
        "finalizers": ["agentmemory.dev/collection"],
        "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [],
    }
    document["status"] = {"agent": "probe", "conditions": []}

    parsed = parse_agent_memory(document)

    assert (parsed.metadata.namespace, parsed.metadata.uid, parsed.metadata.generation) == ("agents", "1-2", 3)
    assert parsed.metadata.creation_timestamp == "2026-11-21T03:00:00Z"
    assert parsed.status == document["status"]


def test_read_only_mapping_is_accepted() -> None:
    document = manifest(types=({"name": "fact", "halfLifeDays": 3},))
    frozen = MappingProxyType(document | {"spec": MappingProxyType(document["spec"]), "status": MappingProxyType({})})

    assert parse_agent_memory(frozen).spec.types is not None


def test_whole_float_is_an_integer() -> None:
    scoring = parse_agent_memory(manifest(scoring={"limit": 20.0, "candidates": 100.0})).spec.scoring

    assert scoring is not None
    assert (scoring.limit, scoring.candidates) == (20, 100)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_number_outside_json_is_rejected(value: float) -> None:
    assert "spec.scoring.utilityNorm" in refusal(manifest(scoring={"utilityNorm": value}))


def test_message_about_invalid_unicode_is_valid() -> None:
    refusal(manifest(agent="\ud800", **{"\udfff": 1})).encode()


def test_excessive_nesting_is_rejected() -> None:
    nested: Any = {}
    for _ in range(10_000):
        nested = {"scoring": nested}
    assert "unknown field" in refusal(manifest(scoring=nested))
    while nested:  # freed level by level: one deallocation would recurse as deeply
        nested = nested.pop("scoring")


@given(document=JSON)
def test_any_json_is_parsed_or_rejected(document: Any) -> None:
    refusal(document)


@given(spec=NEAR_SPECS, old=JSON)
def test_any_spec_is_parsed_or_rejected(spec: Any, old: Any) -> None:
    document = manifest()
    if isinstance(spec, dict):
        spec = {"connectionRef": {"name": "main"}} | spec
    with contextlib.suppress(SpecInvalid):
        parse_agent_memory(document | {"spec": spec}, old=old)
