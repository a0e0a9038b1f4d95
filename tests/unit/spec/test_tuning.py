"""Tuning: field over profile over preset, and the figures that a profile derives from the size."""

import contextlib
import pathlib
import re
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.settings import effective_ranking, effective_tuning
from agentmemory_operator.spec.effective.tuning import Tuning
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.spec_index import HnswSpec, OptimizersSpec
from agentmemory_operator.spec.kinds.status_agent_memory import HnswStatus, OptimizersStatus
from agentmemory_operator.spec.presets import CORTEX
from agentmemory_operator.spec.presets.profiles import PROFILES, figures_of, graph_of
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, ScalarQuantization, TurboQuantization
from tests.support.spec.golden import manifest
from tests.support.spec.plans import probe

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "tuning.md").read_text()


def tuned(dimensions: int = 256, **index: Any) -> Tuning:
    return effective_tuning(probe({"embedding": {"provider": "none", "dimensions": dimensions}, "index": index}))


@pytest.mark.parametrize(
    ("value", "spec", "status", "other_fields"),
    [(Hnsw, HnswSpec, HnswStatus, {"search_ef"}), (Optimizers, OptimizersSpec, OptimizersStatus, set())],
)
def test_spec_value_and_status_have_equal_figures(value: Any, spec: Any, status: Any, other_fields: set[str]) -> None:
    """A figure missing from one of them would be omitted silently."""
    named = {figure.name for figure in fields(value)}

    assert named == spec.model_fields.keys() - other_fields == status.model_fields.keys()


def test_size_is_ignored_without_a_profile() -> None:
    assert tuned(expectedMemories=10**9).hnsw == tuned(expectedMemories=1).hnsw == CORTEX.hnsw
    assert tuned(expectedMemories=10**9).quantization == ScalarQuantization(0.99, always_ram=True)


@pytest.mark.parametrize("profile", PROFILES)
def test_field_overrides_the_profile(profile: str) -> None:
    index = {
        "hnsw": {"m": 17, "efConstruct": 99, "fullScanThresholdKB": 77},
        "optimizers": {"defaultSegmentNumber": 5, "indexingThresholdKB": 6},
        "vectors": {"memory": "Cached", "datatype": "Float16"},
        "quantization": {"type": "Scalar", "quantile": 0.9, "alwaysRam": False, "oversampling": 3},
    }
    found = tuned(profile=profile, **index)

    assert found.hnsw == Hnsw(m=17, ef_construct=99, full_scan_threshold_kb=77)
    assert found.optimizers == Optimizers(default_segment_number=5, indexing_threshold_kb=6)
    assert (found.memory, found.datatype, found.oversampling) == ("Cached", "Float16", 3)
    assert found.quantization == ScalarQuantization(0.9, always_ram=False)


@pytest.mark.parametrize(
    ("profile", "memories", "dimensions", "figures"),
    [
        ("Balanced", 1_000, 1536, {"quantization": None, "memory": "Cached", "m": 16}),
        ("Balanced", 100_000, 1536, {"quantization": ScalarQuantization(0.99, True), "m": 16}),
        ("Balanced", 100_001, 1536, {"m": 32, "ef_construct": 256}),
        ("Balanced", 1_000_000, 1536, {"memory": "Cold"}),
        ("Balanced", 100_000, 1536, {"full_scan_threshold_kb": 60_000}),
        ("LowLatency", 1_000_000, 1536, {"memory": "Cached", "default_segment_number": 0}),
        ("LowLatency", 1_000, 256, {"memory": "Cached", "default_segment_number": 2}),
        ("LowMemory", 1_000, 256, {"memory": "Cold", "quantization": None}),
        ("LowMemory", 100_000, 1536, {"memory": "Cold", "quantization": TurboQuantization("Bits4", True)}),
        ("LowMemory", 10_000_000, 1536, {"quantization": TurboQuantization("Bits2", True), "oversampling": 2}),
        ("HighRecall", 100_000, 1536, {"quantization": None, "m": 32}),
        ("HighRecall", 1_000_000, 1536, {"quantization": ScalarQuantization(0.99, True), "oversampling": 2, "m": 64}),
        ("Custom", 10_000_000, 1536, {"quantization": None, "m": 16, "ef_construct": 100}),
        ("Custom", 1, 3, {"full_scan_threshold_kb": 10_000}),
        ("Balanced", 1, 1, {"full_scan_threshold_kb": 39}),
    ],
)
def test_profile_depends_on_memories_and_dimensions(
    profile: str, memories: int, dimensions: int, figures: dict[str, object]
) -> None:
    found = tuned(dimensions, profile=profile, expectedMemories=memories)

    other_fields = {figure.name: getattr(found, figure.name) for figure in fields(found)}
    flat = other_fields | asdict(found.hnsw) | asdict(found.optimizers)
    assert {name: flat[name] for name in figures} == figures


def test_half_precision_counts_as_half_the_bytes() -> None:
    whole = tuned(1536, profile="Balanced", expectedMemories=1_000_000)
    half = tuned(1536, profile="Balanced", expectedMemories=1_000_000, vectors={"datatype": "Float16"})

    assert (whole.memory, half.memory) == ("Cold", "Cached")
    assert half.hnsw.full_scan_threshold_kb == whole.hnsw.full_scan_threshold_kb // 2


@pytest.mark.parametrize(
    ("quantization", "oversampling"),
    [
        ({"type": "Scalar"}, 1),
        ({"type": "Product"}, 2),
        ({"type": "Binary"}, 4),
        ({"type": "Binary", "encoding": "TwoBits"}, 2),
        ({"type": "Turbo"}, 1),
        ({"type": "Turbo", "bits": "Bits1"}, 4),
        ({"type": "Turbo", "bits": "Bits1", "oversampling": 1}, 1),
        ({"type": "None"}, 1),
    ],
)
def test_each_method_has_its_search_parameters(quantization: dict[str, Any], oversampling: float) -> None:
    ranking = effective_ranking(probe({"index": {"quantization": quantization}}))

    assert (ranking.rescore, ranking.oversampling) == (True, oversampling)


def test_rescoring_can_be_disabled() -> None:
    ranking = effective_ranking(probe({"index": {"quantization": {"type": "Turbo", "rescore": False}}}))

    assert ranking.rescore is False


@given(
    profile=st.none() | st.sampled_from(sorted(PROFILES)),
    expected=st.none() | st.sampled_from([1, 100_000, 100_001, 10**9]),
    m=st.none() | st.integers(4, 64),
    ef=st.none() | st.integers(4, 140),
)
def test_admission_accepts_exactly_valid_graphs(
    profile: str | None, expected: int | None, m: int | None, ef: int | None
) -> None:
    """The engine uses at least m neighbours, so the rule must use the figure of the profile."""
    index = {"profile": profile, "expectedMemories": expected, "hnsw": {"m": m, "efConstruct": ef}}
    base = graph_of(PROFILES[profile], expected or 100_000) if profile else CORTEX.hnsw
    is_valid = (ef or base.ef_construct) >= (m or base.m)

    is_accepted = False
    with contextlib.suppress(SpecInvalid):
        is_accepted = parse_agent_memory(manifest(index=index)) is not None

    assert is_accepted == is_valid


@given(st.sampled_from(sorted(PROFILES)), st.integers(1, 10**9), st.integers(1, 65_536))
def test_profile_has_valid_figures_for_every_size(profile: str, memories: int, size: int) -> None:
    figures = figures_of(PROFILES[profile], expected_memories=memories, dimensions=size, datatype="Float32")

    assert 4 <= figures.hnsw.m <= figures.hnsw.ef_construct
    assert figures.hnsw.full_scan_threshold_kb >= 10


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_documented_table_equals_the_code(profile: Any) -> None:
    rows = {
        cells[0]: cells[1:]
        for line in PAGE.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 7
    }
    column = rows["figure"].index(profile.name)

    def read_cell(row: str) -> str:
        return rows[row][column].replace(",", "")

    assert read_cell("m / efConstruct") == f"{profile.graph.m} / {profile.graph.ef_construct}"
    assert (
        read_cell("the same, above 100,000 memories") == f"{profile.large_graph.m} / {profile.large_graph.ef_construct}"
    )
    assert read_cell("full scan up to, memories") == str(profile.full_scan_memories or "10000 KB")
    assert read_cell("indexingThresholdKB") == str(profile.indexing_threshold_kb)
    assert all(rows[row][5] for row in rows if rows[row] and re.match(r"[a-z]", row))


@pytest.mark.parametrize(("is_enabled", "limit"), [(None, 16), (True, 16), (False, None)])
def test_searches_of_a_request_respect_strict_mode(is_enabled: bool | None, limit: int | None) -> None:
    strict = {"searchMaxBatchsize": 16} | ({} if is_enabled is None else {"enabled": is_enabled})

    ranking = effective_ranking(probe({"index": {"strictMode": strict}}))

    assert ranking.max_batched_searches == limit
