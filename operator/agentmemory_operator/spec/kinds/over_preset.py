"""What the fields of an AgentMemory may not say beside the figures of its preset or profile.

These are no CEL rules. A definition keeps what was true when it was applied, and presets change with the operator: an
older definition would judge an object by figures that no longer hold. So the API server takes such an object, and
`parse` refuses it: `agentmemory validate` and the status of the object name the field.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from agentmemory_operator.spec.expression.models import name_of
from agentmemory_operator.spec.kinds.cel.index import EF_BELOW_M
from agentmemory_operator.spec.kinds.cel.scoring import (
    MODELS_FIGURES,
    ONLY_RANKS_HAVE_K,
    RANKS_WEIGH_BOTH,
    belongs_to,
)
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS, Preset
from agentmemory_operator.spec.presets.profiles import DEFAULT_EXPECTED_MEMORIES, PROFILES, graph_of

Fault = tuple[tuple[str, ...], str]
"""The path of a field, and what is wrong with it."""

_Json = Mapping[str, Any]


def faults_over_preset(document: _Json) -> Iterator[Fault]:
    """Yield what is wrong with a document whose fields are of their types, though not all within their bounds."""
    spec = document["spec"]
    preset = _preset_of(spec.get("preset"), _in_force(document))
    if preset is None:
        return
    scoring = spec.get("scoring", {})
    yield from _of_models(scoring, preset)
    yield from _of_fusion(scoring.get("fusion", {}), preset)
    yield from _of_graph(spec.get("index", {}), preset)


def _in_force(document: _Json) -> _Json:
    """The preset and the revision that hold for the collection, as the status has them; it may have anything."""
    status = document.get("status")
    effective = status.get("effective") if isinstance(status, Mapping) else None
    return effective if isinstance(effective, Mapping) else {}


def _preset_of(named: object, in_force: _Json) -> Preset | None:
    """The preset whose figures hold, in the revision that is in force for it; None where there is none of that name."""
    noted = in_force.get("preset")
    name = named or noted
    revisions = PRESETS.get(name) if isinstance(name, str) else None
    if revisions is None:
        return None if named else PRESETS[DEFAULT_PRESET][-1]
    pinned = in_force.get("presetRevision") if name == noted else None
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def _of_models(scoring: _Json, preset: Preset) -> Iterator[Fault]:
    chosen = scoring.get("model", name_of(preset.model))
    for field, model in MODELS_FIGURES.items():
        if field in scoring and chosen != model:
            yield ("spec", "scoring", field), belongs_to(field, model)


def _of_fusion(fusion: _Json, preset: Preset) -> Iterator[Fault]:
    is_by_ranks, share = fusion.get("method", preset.fusion.method) == "RRF", fusion.get("keywordWeight")
    if "k" in fusion and not is_by_ranks:
        yield ("spec", "scoring", "fusion", "k"), ONLY_RANKS_HAVE_K
    if share is not None and is_by_ranks and not 0 < share < 1:
        yield ("spec", "scoring", "fusion", "keywordWeight"), RANKS_WEIGH_BOTH


def _of_graph(index: _Json, preset: Preset) -> Iterator[Fault]:
    hnsw, profile, graph = index.get("hnsw", {}), index.get("profile"), preset.hnsw
    if isinstance(profile, str) and profile in PROFILES:
        expected = index.get("expectedMemories", DEFAULT_EXPECTED_MEMORIES)
        graph = graph_of(PROFILES[profile], expected)
    if hnsw and hnsw.get("efConstruct", graph.ef_construct) < hnsw.get("m", graph.m):
        yield ("spec", "index", "hnsw", "efConstruct"), EF_BELOW_M
