"""Check the fields of an AgentMemory that depend on the figures of its preset or profile.

These checks are not CEL rules. A CRD is only replaced when it is applied, while presets change with the operator: an
older CRD would judge objects by outdated figures. So the API server accepts such an object and `parse` rejects it.
`agentmemory validate` and the object's status name the field.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from agentmemory_operator.spec.expression.scoring_parameters import model_name
from agentmemory_operator.spec.kinds.cel.index import EF_BELOW_M
from agentmemory_operator.spec.kinds.cel.scoring import (
    K_NEEDS_RRF,
    MODEL_OF_FIGURE,
    RRF_NEEDS_BOTH_WEIGHTS,
    foreign_figure_error,
)
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS, Preset
from agentmemory_operator.spec.presets.profiles import DEFAULT_EXPECTED_MEMORIES, PROFILES, graph_of

Fault = tuple[tuple[str, ...], str]
"""Path of a field, and the error."""

_Json = Mapping[str, Any]


def find_preset_faults(document: _Json) -> Iterator[Fault]:
    """Yield the errors in fields that do not fit the object's preset or profile. Nothing if the preset is unknown.

    The document must have fields of the right types; values may be out of bounds.
    """
    spec = document["spec"]
    preset = _preset_of(spec.get("preset"), _in_force(document))
    if preset is None:
        return
    scoring = spec.get("scoring", {})
    yield from _of_models(scoring, preset)
    yield from _of_fusion(scoring.get("fusion", {}), preset)
    yield from _of_graph(spec.get("index", {}), preset)


def _in_force(document: _Json) -> _Json:
    """Return the preset and revision in force, from the status. Any content of the status is tolerated."""
    status = document.get("status")
    effective = status.get("effective") if isinstance(status, Mapping) else None
    return effective if isinstance(effective, Mapping) else {}


def _preset_of(requested: object, in_force: _Json) -> Preset | None:
    """Return the spec's preset, else the recorded one, else the default; in the revision in force, else the newest.

    A preset that is recorded without a revision is not in force. None if the spec's is unknown.
    """
    recorded = in_force.get("preset") if isinstance(in_force.get("presetRevision"), int) else None
    name = requested or recorded
    revisions = PRESETS.get(name) if isinstance(name, str) else None
    if revisions is None:
        return None if requested else PRESETS[DEFAULT_PRESET][-1]
    pinned = in_force.get("presetRevision") if name == recorded else None
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def _of_models(scoring: _Json, preset: Preset) -> Iterator[Fault]:
    chosen = scoring.get("model", model_name(preset.model))
    for field, model in MODEL_OF_FIGURE.items():
        if field in scoring and chosen != model:
            yield ("spec", "scoring", field), foreign_figure_error(field, model)


def _of_fusion(fusion: _Json, preset: Preset) -> Iterator[Fault]:
    is_by_ranks, share = fusion.get("method", preset.fusion.method) == "RRF", fusion.get("keywordWeight")
    if "k" in fusion and not is_by_ranks:
        yield ("spec", "scoring", "fusion", "k"), K_NEEDS_RRF
    if share is not None and is_by_ranks and not 0 < share < 1:
        yield ("spec", "scoring", "fusion", "keywordWeight"), RRF_NEEDS_BOTH_WEIGHTS


def _of_graph(index: _Json, preset: Preset) -> Iterator[Fault]:
    hnsw, profile, graph = index.get("hnsw", {}), index.get("profile"), preset.hnsw
    if isinstance(profile, str) and profile in PROFILES:
        expected = index.get("expectedMemories", DEFAULT_EXPECTED_MEMORIES)
        graph = graph_of(PROFILES[profile], expected)
    if hnsw and hnsw.get("efConstruct", graph.ef_construct) < hnsw.get("m", graph.m):
        yield ("spec", "index", "hnsw", "efConstruct"), EF_BELOW_M
