"""Presets: their figures, and fields of the object that override them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.collections.rules.changes import ChangeClass, class_of
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.search.rules.score import compute_score, score_query
from agentmemory_operator.spec.effective.embedding import effective_embedding
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets import (
    BRAIN,
    CORTEX,
    NEEDED_INDEXES,
    PRESETS,
    RETRIEVAL_INDEXES,
    Preset,
    Weights,
)
from agentmemory_operator.spec.presets.table import Hnsw, ScalarQuantization
from tests.support.spec.plans import desired_of, observed_of, probe
from tests.support.spec.scores import NOW_MS, Case, preset_cases

INT8 = ScalarQuantization(0.99, always_ram=True)
SIMILARITY_ALONE = Weights(1, 0, 0)
AGES_MS = st.integers(0, 4000 * DAY_MS)


def object_of(preset: str, **spec: Any) -> AgentMemory:
    return probe({"preset": preset, **spec})


def settings_of(preset: str, **spec: Any) -> AgentSettings:
    return effective_settings(object_of(preset, **spec))


def types_of(preset: str) -> dict[str, MemoryType]:
    return {type_.name: type_ for type_ in settings_of(preset).ranking.types}


@pytest.mark.parametrize(
    ("preset", "model", "weights"),
    [
        ("cortex", None, Weights(0.5, 0.3, 0.2)),
        ("brain", Confidence(0.98, 0.3, 2.5), None),
        ("keyed", None, SIMILARITY_ALONE),
        ("cognitive", Priority(0.3, 0.2, 0.5, 30, 100), None),
        ("importance", Importance(0.01, 0.1, 4), None),
        ("none", None, SIMILARITY_ALONE),
    ],
)
def test_preset_uses_the_model_of_its_design(preset: str, model: object, weights: Weights | None) -> None:
    ranking = settings_of(preset).ranking

    assert ranking.model == model
    assert weights in (ranking.weights, None)


@pytest.mark.parametrize(
    ("preset", "limit", "threshold", "least"),
    [
        ("cortex", 10, 0.3, 0.1),
        ("brain", 10, 0, 0.3),
        ("keyed", 20, 0.7, -1),
        ("cognitive", 10, -1, -1),
        ("importance", 10, 0, 0.7),
        ("none", 10, -1, -1),
    ],
)
def test_preset_uses_the_limits_of_its_design(preset: str, limit: int, threshold: float, least: float) -> None:
    ranking = settings_of(preset).ranking

    assert (ranking.limit, ranking.score_threshold, ranking.min_similarity) == (limit, threshold, least)


@pytest.mark.parametrize(
    ("preset", "graph", "datatype", "quantization", "words"),
    [
        ("cortex", (16, 128), "Float32", INT8, False),
        ("brain", (16, 100), "Float32", None, True),
        ("keyed", (16, 100), "Float32", None, False),
        ("cognitive", (32, 400), "Float16", INT8, True),
        ("importance", (16, 64), "Float32", None, False),
        ("none", (16, 100), "Float32", None, False),
    ],
)
def test_preset_defines_the_collection(
    preset: str, graph: tuple[int, int], datatype: str, quantization: object, *, words: bool
) -> None:
    desired = desired_of({"preset": preset})

    assert (desired.hnsw.m, desired.hnsw.ef_construct) == graph
    assert (desired.datatype, desired.quantization, desired.has_keyword) == (datatype, quantization, words)


@pytest.mark.parametrize(
    ("preset", "own"),
    [
        ("cortex", set()),
        ("brain", {"lookupIds", "validFrom", "validTo", "confidence", "lastAccessedAt"}),
        ("keyed", {"namespacePaths", "itemNamespace", "sessionUsedAt"}),
        ("cognitive", {"parentId", "sessionUsedAt"}),
        ("importance", {"author", "lastAccessedAt", "sessionUsedAt"}),
        ("none", {"sessionUsedAt"}),
    ],
)
def test_preset_defines_the_payload_indexes(preset: str, own: set[str]) -> None:
    assert set(settings_of(preset).indexes) == set(dict(RETRIEVAL_INDEXES)) | own


@pytest.mark.parametrize(
    ("more", "added"),
    [
        ({}, set()),
        ({"types": [{"name": "fact", "decay": False}]}, {"type", "tags"}),
        ({"scoring": {"model": "Importance"}}, {"type", "tags", "importance", "accessCount", "lastAccessedAt"}),
        ({"scoring": {"weights": {"similarity": 0.9, "recency": 0, "utility": 0.1}}}, {"importance", "accessCount"}),
        ({"lifecycle": {"sessionIdleHours": 24}}, {"type", "tags", "sessionUsedAt"}),
        ({"scoring": {"evidence": {"terse": 0}}}, {"-evidence.says"}),
        ({"index": {"payloadIndexes": [{"field": "tags", "type": "keyword"}]}}, {"tags"}),
    ],
)
def test_standard_indexes_only_the_fields_in_use(more: dict[str, Any], added: set[str]) -> None:
    """An agent of `standard` must not cost a server more indexes than one of `cortex`."""
    own = {"lookupIds", "sessionOrder", "evidence.says", "evidence.marks"}
    least = set(dict(NEEDED_INDEXES)) | own

    found = set(dict(desired_of({"preset": "standard", **more}).indexes))

    assert found == (least | added) - {"-evidence.says", *(name[1:] for name in added if name[0] == "-")}
    assert len(least) <= len(desired_of({"preset": "cortex"}).indexes)


def test_own_index_does_not_replace_one_of_the_preset() -> None:
    other = settings_of("brain", index={"payloadIndexes": [{"field": "validTo", "type": "float"}]})

    assert other.indexes["validTo"] == "integer"


def test_object_defines_supersession_and_deduplication() -> None:
    types = [
        {"name": "state", "decay": False, "supersedeBy": "subject"},
        {"name": "note", "decay": False, "supersedeBy": "none", "immutable": True},
    ]
    with_types, once = settings_of("cortex", types=types), settings_of("cortex", lifecycle={"deduplicate": True})

    assert [(type_.supersede_by, type_.immutable) for type_ in with_types.ranking.types] == [
        ("subject", False),
        (None, True),
    ]
    assert (with_types.deduplicate, once.deduplicate, settings_of("brain").deduplicate) == (False, True, True)
    assert not settings_of("brain", lifecycle={"deduplicate": False}).deduplicate
    assert with_types.indexes["lookupIds"] == once.indexes["lookupIds"] == "keyword"


def test_brain_types_follow_their_lifecycles() -> None:
    types = types_of("brain")

    assert [types[name].half_life_days is None for name in ("event", "fact", "decision", "status")] == [
        True,
        False,
        True,
        False,
    ]
    assert (types["fact"].supersede_by, types["status"].supersede_by) == ("key", "subject")
    assert [name for name, type_ in types.items() if type_.immutable] == ["event", "decision"]
    assert [name for name, type_ in types.items() if type_.never_expires] == ["decision"]
    assert settings_of("brain").ranking.types[0].ttl == Ttl("SoftUnlessUsed", days=30, keep_importance=0.75)


def test_brain_fusion_equals_the_design() -> None:
    fusion = settings_of("brain").ranking.fusion

    assert (fusion.method, fusion.k, fusion.keyword_weight) == ("RRF", 60, 0.5)


@pytest.mark.parametrize(("preset", "entries"), [("cortex", 10_000), ("keyed", 100)])
def test_preset_defines_the_embedding_cache(preset: str, entries: int) -> None:
    assert settings_of(preset).embedding.cache_entries == entries
    assert settings_of(preset, embedding={"provider": "wordllama", "cacheEntries": 7}).embedding.cache_entries == 7


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_works_offline_by_default(preset: str) -> None:
    embedding = effective_embedding(object_of(preset))

    assert (embedding.provider, embedding.model, embedding.dimensions) == ("wordllama", "l2_supercat", 256)


def test_design_model_is_the_default_of_its_provider() -> None:
    minilm = effective_embedding(object_of("keyed", embedding={"provider": "fastembed"}))

    assert (minilm.model, minilm.dimensions) == ("sentence-transformers/all-MiniLM-L6-v2", 384)


@pytest.mark.parametrize(
    ("preset", "scoring", "model"),
    [
        ("brain", {"confidence": {"dailyFactor": 0.9}}, Confidence(0.9, 0.3, 2.5)),
        ("cognitive", {"priority": {"maxAccesses": 9}}, Priority(max_accesses=9)),
        ("importance", {"importance": {"idleFactor": 0}}, Importance(0.01, 0, 4)),
        ("importance", {"importance": {"unimportantFactor": 1}}, Importance(0.01, 0.1)),
        ("cortex", {"model": "Importance", "importance": {"unimportantFactor": 7}}, Importance(0.01, 0.1, 7)),
        ("brain", {"model": "Priority"}, Priority()),
        ("cognitive", {"model": "Importance", "importance": {"dailyRate": 1}}, Importance(1, 0.1)),
        ("none", {"model": "Confidence"}, Confidence()),
    ],
)
def test_own_model_figures_override_every_preset(preset: str, scoring: dict[str, Any], model: object) -> None:
    assert settings_of(preset, scoring=scoring).ranking.model == model


def test_weighted_model_uses_the_figures_of_cortex() -> None:
    """The figures are those of cortex even under a preset of another model."""
    ranking = settings_of("brain", scoring={"model": "Weighted"}).ranking

    assert (ranking.model, ranking.weights, ranking.utility_norm) == (None, CORTEX.weights, CORTEX.utility_norm)


@pytest.mark.parametrize("preset", ["brain", "none"])
@pytest.mark.parametrize(
    ("scoring", "figure", "value"),
    [
        ({"limit": 3}, "limit", 3),
        ({"scoreThreshold": 0.45}, "score_threshold", 0.45),
        ({"minSimilarity": 0.05}, "min_similarity", 0.05),
        ({"candidates": 50}, "candidates", 50),
    ],
)
def test_own_limit_overrides_every_preset(preset: str, scoring: dict[str, Any], figure: str, value: object) -> None:
    assert getattr(settings_of(preset, scoring=scoring).ranking, figure) == value


@pytest.mark.parametrize("preset", PRESETS)
def test_own_types_replace_those_of_every_preset(preset: str) -> None:
    listed = settings_of(
        preset, types=[{"name": "rule", "decay": False, "boost": 2}, {"name": "note", "halfLifeDays": 3}]
    )

    assert listed.ranking.types == (MemoryType("rule", None, 2), MemoryType("note", 3))


@pytest.mark.parametrize("preset", ["brain", "none"])
@pytest.mark.parametrize("words", [True, False])
def test_object_enables_keywords_under_every_preset(preset: str, *, words: bool) -> None:
    assert desired_of({"preset": preset, "index": {"keyword": {"enabled": words}}}).has_keyword is words


@pytest.mark.parametrize("preset", PRESETS)
def test_own_layout_overrides_every_preset(preset: str) -> None:
    index = {
        "distance": "Dot",
        "hnsw": {"m": 20, "efConstruct": 77},
        "vectors": {"datatype": "Float32"},
        "quantization": {"type": "Binary"},
    }
    desired = desired_of({"preset": preset, "index": index})

    assert (desired.distance, desired.hnsw.m, desired.hnsw.ef_construct, desired.datatype) == ("Dot", 20, 77, "Float32")
    assert desired.quantization != INT8


def test_own_fusion_overrides_single_figures() -> None:
    fusion = settings_of("brain", scoring={"fusion": {"k": 30}}).ranking.fusion

    assert (fusion.method, fusion.k, fusion.keyword_weight) == ("RRF", 30, 0.5)


@pytest.mark.parametrize("model", ["Weighted", "Confidence", "Importance"])
def test_types_of_preset_none_do_not_decay(model: str) -> None:
    ranking = settings_of("none", scoring={"model": model}).ranking
    ranking = replace(ranking, weights=CORTEX.weights, model=_never_idle(ranking.model))
    old, new = (ScoreInput(type="whatever", similarity=0.5, created_at=-days * DAY_MS) for days in (4000, 0))

    assert compute_score(old, ranking, now_ms=0).score == compute_score(new, ranking, now_ms=0).score


def _never_idle(model: Any) -> Any:
    return replace(model, idle_factor=0.0) if isinstance(model, Importance) else model


@pytest.mark.parametrize("case", list(preset_cases()), ids=lambda case: case[0])
def test_preset_scores_equal_the_reference_values(case: Case) -> None:
    _, ranking, memory, expected = case

    assert abs(compute_score(memory, ranking, now_ms=NOW_MS).score - expected) < 1e-9


@pytest.mark.parametrize("preset", ["cortex", "brain", "importance"])
@given(data=st.data())
def test_score_does_not_grow_with_age(preset: str, data: st.DataObject) -> None:
    """Preset cognitive is exempt: it ranks memories of a day above those of an hour."""
    ranking = settings_of(preset).ranking
    type_ = data.draw(st.sampled_from([type_.name for type_ in ranking.types]))
    younger, older = sorted(data.draw(st.tuples(AGES_MS, AGES_MS)))
    memory = ScoreInput(
        type=type_,
        similarity=data.draw(st.floats(0, 1)),
        created_at=0,
        importance=data.draw(st.floats(0, 1)),
        access_count=data.draw(st.integers(0, 10**6)),
    )

    assert compute_score(memory, ranking, now_ms=older).score <= compute_score(memory, ranking, now_ms=younger).score


@given(data=st.data())
def test_priority_does_not_grow_with_age(data: st.DataObject) -> None:
    younger, older = sorted(data.draw(st.tuples(AGES_MS, AGES_MS)))
    memory = ScoreInput(type="episodic", similarity=0.5, created_at=0, importance=data.draw(st.floats(0, 1)))
    ranking = settings_of("cognitive").ranking
    earlier, later = (compute_score(memory, ranking, now_ms=now_ms).terms["priority"] for now_ms in (younger, older))

    assert later <= earlier


def test_preset_none_scores_by_similarity_alone() -> None:
    ranking = settings_of("none").ranking
    memory = ScoreInput(type="x", similarity=0.37, created_at=-(10**12), importance=1, access_count=999)

    assert compute_score(memory, ranking, now_ms=0).score == 0.37
    assert "type" not in json.dumps(score_query(ranking, now_ms=0, distance="Cosine"))


def test_preset_none_allows_any_type_in_expressions() -> None:
    settings = settings_of("none", scoring={"model": "Expression", "expression": 'if(type == "rule", 2, 1)'})

    assert settings.scoring_fault is None


@pytest.mark.parametrize(("preset", "default"), [("cortex", "fact"), ("brain", "event"), ("none", "memory")])
def test_first_type_is_the_default(preset: str, default: str) -> None:
    assert settings_of(preset).ranking.default_type == default


@pytest.mark.parametrize("preset", [revisions[-1] for revisions in PRESETS.values()], ids=PRESETS)
def test_every_type_has_a_meaning(preset: Preset) -> None:
    assert all(type_.meaning for type_ in preset.types)


def test_preset_without_a_layout_uses_engine_defaults() -> None:
    assert BRAIN.hnsw == Hnsw(m=16, ef_construct=100, full_scan_threshold_kb=10_000)


def test_working_memory_slots_are_configurable() -> None:
    assert settings_of("cognitive").working_memory_slots == 4
    assert settings_of("cognitive", lifecycle={"workingMemorySlots": 2}).working_memory_slots == 2


def costs_of(preset: str) -> set[ChangeClass]:
    """Return the change classes of switching from preset cortex to another one."""
    before = observed_of(desired_of({"preset": "cortex"}))
    plan = plan_changes(desired_of({"preset": preset}), before, alias="agent_memory_probe", physical=before.physical)
    return {class_of(change) for change in plan.changes}


@pytest.mark.parametrize("preset", ["brain", "keyed", "importance", "none"])
def test_other_preset_needs_a_reindex_only(preset: str) -> None:
    assert costs_of(preset) <= {ChangeClass.IN_PLACE, ChangeClass.REINDEX}


def test_half_precision_needs_a_rebuild() -> None:
    assert ChangeClass.REBUILD in costs_of("cognitive")
