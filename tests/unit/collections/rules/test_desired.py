"""Desired collections built from specs."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.configuration import creation_of
from agentmemory_operator.collections.rules.collection import Marker, marker_from_json, marker_to_json, settings_by_name
from agentmemory_operator.collections.rules.desired import hash_config
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.presets import CORTEX, RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, ScalarQuantization
from tests.support.spec.plans import desired_of

OPENAI = {"provider": "openai", "model": "a", "dimensions": 8}


def test_empty_spec_gets_preset() -> None:
    desired = desired_of()

    assert (desired.size, desired.distance) == (256, "Cosine")
    assert desired.hnsw == Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000)
    assert desired.optimizers == Optimizers(default_segment_number=2, indexing_threshold_kb=20_000)
    assert desired.quantization == ScalarQuantization(0.99, always_ram=True)
    assert desired.indexes == tuple(sorted(RETRIEVAL_INDEXES))


@pytest.mark.parametrize(
    ("scoring", "added"),
    [
        ({"model": "Confidence"}, {("confidence", "float"), ("lastAccessedAt", "integer")}),
        ({"model": "Importance"}, {("lastAccessedAt", "integer")}),
        ({"model": "Priority"}, set()),
        ({"model": "Expression", "expression": "similarity * decay(idleDays, 30)"}, {("lastAccessedAt", "integer")}),
        ({"model": "Expression", "expression": "similarity * confidence"}, {("confidence", "float")}),
    ],
)
def test_scoring_model_adds_its_indexes(scoring: dict[str, Any], added: set[tuple[str, str]]) -> None:
    assert set(desired_of({"scoring": scoring}).indexes) == {*RETRIEVAL_INDEXES, *added}


def test_marker_has_owner_and_embedding() -> None:
    desired = desired_of(generation=5)

    assert desired.marker == Marker(
        cluster_id="cluster-1",
        namespace="agents",
        name="probe",
        uid="uid-probe",
        generation=5,
        config_hash=desired.marker.config_hash if desired.marker else "",
        preset_revision=CORTEX.revision,
        embedding=EmbeddingSource(provider="wordllama", model="l2_supercat", dimensions=256),
        connection="agents/main",
        preset="cortex",
    )
    assert desired.marker.agent == "probe"
    assert marker_from_json(marker_to_json(desired.marker)).agent == "probe"


def test_marker_has_secret_reference_only() -> None:
    spec = {"embedding": OPENAI | {"baseURL": "http://e/v1", "secretRef": {"name": "s", "key": "k"}}}
    marker = desired_of(spec).marker

    assert marker is not None
    assert marker.embedding == EmbeddingSource(
        provider="openai", model="a", dimensions=8, base_url="http://e/v1", secret_name="s", secret_key="k"
    )


@pytest.mark.parametrize(
    ("index", "field", "value"),
    [
        ({"distance": "Dot"}, "distance", "Dot"),
        ({"hnsw": {"m": 4}}, "m", 4),
        ({"hnsw": {"efConstruct": 1000}}, "ef_construct", 1000),
        ({"hnsw": {"fullScanThresholdKB": 10}}, "full_scan_threshold_kb", 10),
        ({"optimizers": {"defaultSegmentNumber": 0}}, "default_segment_number", 0),
        ({"optimizers": {"indexingThresholdKB": 0}}, "indexing_threshold_kb", 0),
        ({"quantization": {"type": "None"}}, "quantization", None),
        ({"quantization": {"type": "Scalar"}}, "quantization", ScalarQuantization(0.99, True)),
        ({"quantization": {"type": "Scalar", "quantile": 0.5}}, "quantization", ScalarQuantization(0.5, True)),
        ({"quantization": {"type": "Scalar", "quantile": 1.0}}, "quantization", ScalarQuantization(1.0, True)),
        (
            {"quantization": {"type": "Scalar", "quantile": 0.9876543}},
            "quantization",
            ScalarQuantization(0.987654, True),
        ),
        ({"quantization": {"type": "Scalar", "alwaysRam": False}}, "quantization", ScalarQuantization(0.99, False)),
    ],
)
def test_field_overrides_preset(index: Mapping[str, Any], field: str, value: object) -> None:
    desired, preset = settings_by_name(desired_of({"index": index})), settings_by_name(desired_of())

    assert desired[field] == value
    others = preset.keys() - {field, "marker"}
    assert {name: desired[name] for name in others} == {name: preset[name] for name in others}


@pytest.mark.parametrize(
    "spec",
    [
        {"index": {"hnsw": {"m": 17}}},
        {"index": {"distance": "Dot"}},
        {"index": {"quantization": {"type": "None"}}},
        {"embedding": OPENAI},
        {"embedding": OPENAI | {"baseURL": "http://e/v1"}},
    ],
)
def test_hash_covers_every_layout_setting(spec: Mapping[str, Any]) -> None:
    assert _hash(spec) != _hash({})


@pytest.mark.parametrize(
    "spec",
    [
        {"scoring": {"limit": 3}},
        {"index": {"hnsw": {"searchEf": 9}}},
        {"deletionPolicy": "Delete"},
        {"index": {"hnsw": {"m": 16}}},
        {"embedding": {"provider": "wordllama"}},
    ],
)
def test_hash_ignores_other_settings(spec: Mapping[str, Any]) -> None:
    assert _hash(spec) == _hash({})


def test_hash_is_twelve_hex_digits() -> None:
    desired = desired_of()
    assert desired.marker is not None

    assert len(_hash({})) == 12
    assert int(_hash({}), 16) >= 0
    assert desired_of(generation=77).marker != desired.marker
    assert hash_config(desired_of(), desired.marker.embedding) == hash_config(desired, desired.marker.embedding)


def _hash(spec: Mapping[str, Any]) -> str:
    marker = desired_of(spec).marker
    assert marker is not None
    return marker.config_hash


def test_payload_is_on_disk_by_default() -> None:
    assert creation_of(desired_of())["on_disk_payload"] is True
    assert creation_of(desired_of({"index": {"payload": {"onDisk": False}}}))["on_disk_payload"] is False
