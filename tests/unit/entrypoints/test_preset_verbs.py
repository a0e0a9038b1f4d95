"""`agentmemory preset`: the printed object has the same settings as the preset."""

import json
import pathlib
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.agent_memory import TypeSpec
from agentmemory_operator.spec.kinds.model_base import manifest_name
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import PRESETS
from tests.support.command_line import command_line
from tests.support.spec.golden import LOADER

LISTED = [name for name in PRESETS if PRESETS[name][-1].types]
RUNNER = CliRunner()


@cache
def run_preset(*arguments: str) -> str:
    result = RUNNER.invoke(command_line(), ["preset", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def show(preset: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(run_preset("show", preset, "-o", "yaml"), Loader=LOADER)
    return document


def settings_of(document: dict[str, Any], **spec: Any) -> AgentSettings:
    settings = effective_settings(parse_agent_memory(document | {"spec": document["spec"] | spec}))
    plain = MemoryType("", None)
    # Figures without a field in the spec of a type.
    without_field = {name: getattr(plain, name) for name in {"supersede_by", "immutable"} - set(TypeSpec.model_fields)}
    types = tuple(replace(type_, **without_field) for type_ in settings.ranking.types)
    # A shown preset sets the weights itself, so it has those of no model.
    ranking = replace(settings.ranking, types=types, model_weights=(), own_weights=frozenset())
    return replace(settings, ranking=ranking)


def named_only(document: dict[str, Any], preset: str) -> dict[str, Any]:
    return document | {"spec": {"connectionRef": {"name": "main"}, "preset": preset}}


@pytest.mark.parametrize("preset", PRESETS)
def test_shown_preset_has_the_same_settings(preset: str) -> None:
    document = show(preset)

    assert settings_of(document) == settings_of(named_only(document, preset))


@pytest.mark.parametrize("preset", PRESETS)
def test_shown_preset_has_the_same_collection(preset: str) -> None:
    document = show(preset)
    written, named = (
        desired_collection(parse_agent_memory(each), cluster_id="c")
        for each in (document, named_only(document, preset))
    )

    assert written == named


@pytest.mark.parametrize("preset", LISTED)
@pytest.mark.parametrize("other", PRESETS)
def test_shown_preset_overrides_any_other_preset(preset: str, other: str) -> None:
    """Every figure that a preset decides has a field, and the field wins."""
    document = show(preset)
    own, under = settings_of(document), settings_of(document, preset=other)

    # Weights are ignored by other models.
    model_source = own.ranking if own.ranking.model else under.ranking
    ranking = replace(under.ranking, weights=model_source.weights, utility_norm=model_source.utility_norm)
    # No field of an object sets these.
    named = ("preset", "max_content_tokens", "knowledge_category")
    only_the_presets = {name: getattr(own, name) for name in named}
    assert replace(under, **only_the_presets, indexes=own.indexes, ranking=ranking) == own
    assert own.indexes.items() <= under.indexes.items()


@pytest.mark.parametrize("preset", PRESETS)
def test_shown_preset_passes_validate(tmp_path: pathlib.Path, preset: str) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(run_preset("show", preset))

    assert RUNNER.invoke(command_line(), ["validate", "-f", str(file)]).exit_code == 0


# Location of each printed figure: a path in the object, or a name in the comments after it.
SHOWN_AS: dict[str, tuple[str, ...]] = {
    "types": ("spec", "types"),
    "model": ("spec", "scoring", "model"),
    "limit": ("spec", "scoring", "limit"),
    "score_threshold": ("spec", "scoring", "scoreThreshold"),
    "min_similarity": ("spec", "scoring", "minSimilarity"),
    "has_keyword": ("spec", "index", "keyword", "enabled"),
    "has_entities": ("spec", "entities", "enabled"),
    "fusion": ("spec", "scoring", "fusion"),
    "evidence": ("spec", "scoring", "evidence"),
    "embedding_cache_entries": ("spec", "embedding", "cacheEntries"),
    "distance": ("spec", "index", "distance"),
    "datatype": ("spec", "index", "vectors", "datatype"),
    "hnsw": ("spec", "index", "hnsw"),
    "optimizers": ("spec", "index", "optimizers"),
    "quantization": ("spec", "index", "quantization"),
    "memory": ("spec", "index", "vectors", "memory"),
    "lifecycle": ("spec", "lifecycle"),
    "revision": ("revision",),
    "payload_indexes": ("payloadIndexes",),
    "max_content_tokens": ("maxContentTokens",),
    "knowledge_category": ("knowledgeCategory",),
    "embedding_models": ("modelOfProvider",),
    "model_weights": ("weightsOfModel",),
    "consolidation": ("consolidation",),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_figure_of_a_preset_is_printed(preset: str) -> None:
    text, figures = run_preset("show", preset), PRESETS[preset][-1]
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    found = yaml.load(text, Loader=LOADER) | yaml.load("\n".join(comments[1:]), Loader=LOADER)
    weighted = ("spec", "scoring") if figures.model is None else ("withModelWeighted",)
    paths = SHOWN_AS | {"weights": (*weighted, "weights"), "utility_norm": (*weighted, "utilityNorm")}

    # A preset that accepts any type has no list.
    missing = set() if figures.types else {"types"}
    assert {field.name for field in fields(figures)} - {"name", "summary"} == paths.keys()
    for name in paths.keys() - missing:
        value = found
        for part in paths[name]:
            assert part in value, f"{name}: {paths[name]}"
            value = value[part]
    for part in ("hnsw", "optimizers"):
        written = {manifest_name(figure.name) for figure in fields(getattr(figures, part))}
        assert found["spec"]["index"][part].keys() == written
    assert found["payloadIndexes"] == dict(figures.payload_indexes)
    assert (found["revision"], found["maxContentTokens"]) == (figures.revision, figures.max_content_tokens)
    assert found["consolidation"]["schedule"] == figures.consolidation.schedule
    assert found["weightsOfModel"].keys() == dict(figures.model_weights).keys()


def test_json_output_equals_yaml_output() -> None:
    assert json.loads(run_preset("show", "brain", "-o", "json")) == show("brain")


def test_list_names_every_preset() -> None:
    lines = run_preset("list").splitlines()[1:]

    assert [line.split()[0] for line in lines] == list(PRESETS)
