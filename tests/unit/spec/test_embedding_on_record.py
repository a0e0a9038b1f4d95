"""Embedding of an object that names none: that of its collection; the operator's default for a new collection."""

from typing import Any, get_args

import pytest

from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.settings import DefaultEmbedding
from agentmemory_operator.spec.effective.embedding import (
    DEFAULT_EMBEDDINGS,
    EmbeddingSource,
    Prefixes,
    effective_embedding,
)
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import READY, Stage

PHYSICAL = "agent_memory_probe__1"
KEY = Key("AgentMemory", "agents", "probe")
BGE, WORDLLAMA, E5 = "bge-small-en-v1.5", "wordllama", "multilingual-e5-small"
MODELS = {
    BGE: EmbeddingSource(provider="fastembed", model="BAAI/bge-small-en-v1.5", dimensions=384),
    WORDLLAMA: EmbeddingSource(provider="wordllama", model="l2_supercat", dimensions=256),
    E5: EmbeddingSource(
        provider="fastembed",
        model="intfloat/multilingual-e5-small",
        dimensions=384,
        prefixes=Prefixes(query="query: ", passage="passage: "),
    ),
}


async def stage_with(default: str, **spec: Any) -> Stage:
    """Return a stage with a converged object, whose operator has the default embedding."""
    stage = Stage()
    stage.table.default_embedding = default
    stage.put(connection_document())
    await stage.run(stage.put(memory_document(**spec)))
    stage.store.points[PHYSICAL] = 5
    return stage


async def run_with(stage: Stage, default: str, *, status: Json | None = None, **spec: Any) -> None:
    """Run a pass of an operator with another default over the object, with the status."""
    stage.table.default_embedding = default
    stage.store.calls.clear()
    stage.put(memory_document(metadata={"generation": 2}, **spec) | ({"status": status} if status else {}))
    await stage.run(KEY)


def recorded(stage: Stage) -> EmbeddingSource:
    marker = stage.store.collections[PHYSICAL].marker
    assert marker is not None
    return marker.embedding


def test_setting_names_each_default() -> None:
    assert list(DEFAULT_EMBEDDINGS) == list(get_args(DefaultEmbedding))


@pytest.mark.parametrize("default", DEFAULT_EMBEDDINGS)
async def test_new_collection_gets_the_default(default: str) -> None:
    stage = await stage_with(default)

    assert stage.short(KEY) == READY
    assert recorded(stage) == MODELS[default]
    assert stage.status(KEY)["effective"]["embedding"]["model"] == MODELS[default].model


async def test_status_shows_the_weights_of_the_model() -> None:
    stage = await stage_with(BGE, preset="standard", scoring={"evidence": {"author": 0.2}})

    scoring = stage.status(KEY)["effective"]["scoring"]
    assert scoring["fusion"] == {"method": "Score", "keywordWeight": 0.4}
    assert scoring["evidence"] == {"terse": 0.1, "author": 0.2, "time": 0.1, "date": 0.05}


@pytest.mark.parametrize("keeps_status", [True, False], ids=["upgraded", "applied again without status"])
@pytest.mark.parametrize(("before", "after"), [(WORDLLAMA, BGE), (BGE, WORDLLAMA), (BGE, E5), (E5, BGE)])
async def test_other_default_changes_no_existing_collection(before: str, after: str, keeps_status: bool) -> None:
    stage = await stage_with(before)
    collection, status = stage.store.collections[PHYSICAL], stage.status(KEY)

    await run_with(stage, after, status=status if keeps_status else None)

    assert stage.short(KEY) == READY
    assert "plan" not in stage.status(KEY)
    assert stage.store.changes == []
    assert stage.store.collections[PHYSICAL] == collection
    assert stage.status(KEY)["effective"]["embedding"] == status["effective"]["embedding"]
    parsed = stage.table.parse(stage.table.get(KEY) or {})
    assert effective_embedding(parsed).model == MODELS[before].model


async def test_collection_decides_over_a_wrong_status() -> None:
    stage = await stage_with(WORDLLAMA)
    status = stage.status(KEY)
    forged = {"provider": "fastembed", "model": MODELS[BGE].model, "dimensions": 384}

    await run_with(stage, BGE, status=status | {"effective": status["effective"] | {"embedding": forged}})

    assert stage.store.changes == []
    assert stage.status(KEY)["effective"]["embedding"]["provider"] == "wordllama"


async def test_lost_collection_is_recreated_with_its_embedding() -> None:
    stage = await stage_with(WORDLLAMA)
    status = stage.status(KEY)
    stage.store.collections.clear()
    stage.store.points.clear()
    stage.cluster.created["AgentMemory", "probe"] = memory_document()

    await run_with(stage, BGE, status=status | {"collection": {"physical": PHYSICAL, "points": 0}})

    assert [found.marker and found.marker.embedding for found in stage.store.collections.values()] == [
        MODELS[WORDLLAMA]
    ]


@pytest.mark.parametrize(
    "provider",
    [
        {"provider": "openai", "model": "m", "dimensions": 256},
        {"provider": "wordllama", "dimensions": 64},
        {"provider": "none", "dimensions": 384},
    ],
    ids=["service", "other size", "vectors of callers"],
)
async def test_removed_embedding_is_replaced_by_the_default(provider: Json) -> None:
    """The texts of an object go to no service that its spec does not name."""
    stage = await stage_with(WORDLLAMA, embedding=provider)

    await run_with(stage, BGE, status=stage.status(KEY))

    assert "embedding.provider" in str(stage.status(KEY)["plan"])


async def test_named_embedding_overrides_the_recorded_one() -> None:
    stage = await stage_with(BGE)

    await run_with(stage, BGE, status=stage.status(KEY), embedding={"provider": "wordllama"})

    assert "embedding.model" in str(stage.status(KEY)["plan"])
