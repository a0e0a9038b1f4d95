"""`agentmemory preset`: what it prints is an object that means what the preset alone means."""

import json
import pathlib
from dataclasses import fields, replace
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

LISTED = [name for name in PRESETS if PRESETS[name][-1].types]
RUNNER = CliRunner()


def printed(*arguments: str) -> str:
    done = RUNNER.invoke(command_line(), ["preset", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def shown(preset: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(printed("show", preset, "-o", "yaml"))
    return document


def settings_of(document: dict[str, Any], **spec: Any) -> AgentSettings:
    settings = effective_settings(parse_agent_memory(document | {"spec": document["spec"] | spec}))
    plain = MemoryType("", None)
    # What no field of a type says yet.
    unsaid = {name: getattr(plain, name) for name in {"supersede_by", "immutable"} - set(TypeSpec.model_fields)}
    types = tuple(replace(type_, **unsaid) for type_ in settings.ranking.types)
    return replace(settings, ranking=replace(settings.ranking, types=types))


def plain_of(document: dict[str, Any], preset: str) -> dict[str, Any]:
    return document | {"spec": {"connectionRef": {"name": "main"}, "preset": preset}}


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_shown_of_a_preset_means_what_its_name_alone_means(preset: str) -> None:
    document = shown(preset)

    assert settings_of(document) == settings_of(plain_of(document, preset))


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_shown_of_a_preset_makes_the_same_collection(preset: str) -> None:
    document = shown(preset)
    written, named = (
        desired_collection(parse_agent_memory(each), cluster_id="c") for each in (document, plain_of(document, preset))
    )

    assert written == named


@pytest.mark.parametrize("preset", LISTED)
@pytest.mark.parametrize("other", PRESETS)
def test_nothing_of_another_preset_is_left_where_one_is_written_out(preset: str, other: str) -> None:
    """Every figure that a preset decides can be said by a field, and the field wins."""
    document = shown(preset)
    own, under = settings_of(document), settings_of(document, preset=other)

    # What another model would weigh by says nothing here.
    weighed = own.ranking if own.ranking.model else under.ranking
    ranking = replace(under.ranking, weights=weighed.weights, utility_norm=weighed.utility_norm)
    # No field of an object gives these.
    named = ("preset", "max_content_tokens", "knowledge_category")
    only_the_presets = {name: getattr(own, name) for name in named}
    assert replace(under, **only_the_presets, indexes=own.indexes, ranking=ranking) == own
    assert own.indexes.items() <= under.indexes.items()


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_shown_of_a_preset_passes_validate(tmp_path: pathlib.Path, preset: str) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(printed("show", preset))

    assert RUNNER.invoke(command_line(), ["validate", "-f", str(file)]).exit_code == 0


# Where each figure of a preset is printed: a path in the object, or a name among the comments after it.
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
    "consolidation": ("consolidation",),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_figure_of_a_preset_is_printed(preset: str) -> None:
    text, figures = printed("show", preset), PRESETS[preset][-1]
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    found = yaml.safe_load(text) | yaml.safe_load("\n".join(comments[1:]))
    weighted = ("spec", "scoring") if figures.model is None else ("withModelWeighted",)
    places = SHOWN_AS | {"weights": (*weighted, "weights"), "utility_norm": (*weighted, "utilityNorm")}

    # Of a preset that takes any type there is no list.
    missing = set() if figures.types else {"types"}
    assert {field.name for field in fields(figures)} - {"name", "summary"} == places.keys()
    for name in places.keys() - missing:
        value = found
        for part in places[name]:
            assert part in value, f"{name}: {places[name]}"
            value = value[part]
    for part in ("hnsw", "optimizers"):
        written = {manifest_name(figure.name) for figure in fields(getattr(figures, part))}
        assert found["spec"]["index"][part].keys() == written
    assert found["payloadIndexes"] == dict(figures.payload_indexes)
    assert (found["revision"], found["maxContentTokens"]) == (figures.revision, figures.max_content_tokens)
    assert found["consolidation"]["schedule"] == figures.consolidation.schedule


def test_a_preset_is_shown_as_json_too() -> None:
    assert json.loads(printed("show", "brain", "-o", "json")) == shown("brain")


def test_the_list_names_every_preset() -> None:
    lines = printed("list").splitlines()[1:]

    assert [line.split()[0] for line in lines] == list(PRESETS)
