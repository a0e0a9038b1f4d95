"""Embedders that the operator opens for rebuilds, with the key in the object's Secret."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import RebuildPaused
from agentmemory_operator.main.rebuilds import RebuildEmbedders
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.fakes import FakeSecrets
from tests.support.metrics import collect_samples
from tests.support.spec.documents import memory_document
from tests.support.web.http_server import serve
from tests.support.web.services import FakeOpenAI, embedding_of

KEY = ("agents", "provider", "api-key")


@pytest.fixture
def service() -> Iterator[tuple[FakeOpenAI, str]]:
    service = FakeOpenAI()
    with serve(service.app()) as url:
        yield service, f"{url}/v1"


def source_of(url: str) -> EmbeddingSource:
    return EmbeddingSource(
        provider="openai", model="m", dimensions=8, base_url=url, secret_name=KEY[1], secret_key=KEY[2]
    )


@contextlib.asynccontextmanager
async def embedders_of(secrets: FakeSecrets, **settings: Any) -> AsyncIterator[RebuildEmbedders]:
    embedders = RebuildEmbedders(Settings(**settings), secrets)
    yield embedders
    await embedders.close()


def agent() -> AgentMemory:
    embedding = {"provider": "openai", "model": "m", "dimensions": 8, "secretRef": {"name": KEY[1], "key": KEY[2]}}
    return parse_agent_memory(memory_document(embedding=embedding | {"timeoutSeconds": 1}))


async def test_secret_key_is_sent_and_calls_are_measured(
    service: tuple[FakeOpenAI, str],
) -> None:
    async with embedders_of(FakeSecrets({KEY: "k1"})) as embedders:
        embedder = await embedders.open(source_of(service[1]), agent())
        assert await embedder.embed(["a"]) == [embedding_of("a", 8)]

    assert service[0].keys == ["Bearer k1"]
    count = 'agentmemory_rebuild_embed_duration_seconds_count{outcome="ok",provider="openai"}'
    assert collect_samples(*embedders.meter.metrics)[count] == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (source_of("http://127.0.0.1:1/v1"), "Secret agents/provider with key 'api-key' not found"),
        (EmbeddingSource(provider="none", model=None, dimensions=8), "provider none cannot embed"),
        (EmbeddingSource(provider="wordllama", model=None, dimensions=8), "wordllama gives 64, 128 or 256"),
    ],
)
async def test_unusable_embedder_pauses_the_rebuild(source: EmbeddingSource, message: str) -> None:
    async with embedders_of(FakeSecrets()) as embedders:
        with pytest.raises(RebuildPaused, match=message):
            await embedders.open(source, agent())


@pytest.mark.parametrize(("is_in_cluster", "key"), [(False, "Bearer own"), (True, "Bearer none")])
async def test_environment_key_is_only_used_in_development(
    service: tuple[FakeOpenAI, str], is_in_cluster: bool, key: str
) -> None:
    source = EmbeddingSource(provider="openai", model="m", dimensions=8, base_url=service[1])
    settings = {"is_in_cluster": is_in_cluster, "allowed_hosts": "127.0.0.1"}
    async with embedders_of(FakeSecrets(), openai_api_key="own", **settings) as embedders:
        await (await embedders.open(source, agent())).embed(["a"])

    assert service[0].keys == [key]


async def test_texts_get_the_passage_prefix(service: tuple[FakeOpenAI, str]) -> None:
    source = replace(source_of(service[1]), prefixes=Prefixes(query="query: ", passage="passage: "))
    async with embedders_of(FakeSecrets({KEY: "k1"})) as embedders:
        embedder = await embedders.open(source, agent())
        assert await embedder.embed(["a"]) == [embedding_of("passage: a", 8)]
