"""Connections: stores by reference, and results of probes."""

import asyncio
import contextlib
from typing import Any

import pytest

from agentmemory_operator.connections import probe as connections
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.errors import AgentMemoryError, SecretMissing, SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.runtime.object_table import ObjectTable, key_of
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeSecrets
from tests.support.spec.documents import connection_document, memory_document

KEYED = connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}, timeoutSeconds=3)
SECRETS = {("agents", "qdrant", "k"): "s3cret"}
MEMORY = parse_agent_memory(memory_document())
CONNECTION = connection_document()


async def itself(store: CollectionStore) -> CollectionStore:
    return store


class SilentStore(FakeCollectionStore):
    """A server whose response never ends."""

    async def server(self) -> ServerCapabilities:
        await asyncio.Event().wait()
        raise AssertionError("it never comes")


class Bench:
    """`Connections` that records opened endpoints."""

    def __init__(self) -> None:
        self.table = ObjectTable()
        self.secrets = FakeSecrets()
        self.opened: list[Endpoint] = []
        self.store = FakeCollectionStore()
        self.connections = Connections(self.table, self.secrets, self._open)

    def _open(self, endpoint: Endpoint) -> CollectionStore:
        self.opened.append(endpoint)
        return self.store if len(self.opened) == 1 else FakeCollectionStore()


async def test_objects_share_the_connections_store() -> None:
    bench = Bench()
    bench.table.put(connection_document())

    for memory in (MEMORY, parse_agent_memory(memory_document("b"))):
        await bench.connections.use(memory, itself)

    assert len(bench.opened) == 1


async def test_probe_finds_a_new_key() -> None:
    bench = Bench()
    bench.table.put(KEYED)
    bench.secrets.values = SECRETS
    first = await bench.connections.survey(key_of(CONNECTION), itself)
    bench.secrets.values = {("agents", "qdrant", "k"): "rotated"}

    await bench.connections.probe(KEYED)

    assert await bench.connections.survey(key_of(CONNECTION), itself) is not first
    assert [endpoint.api_key for endpoint in bench.opened] == ["s3cret", "rotated"]
    assert bench.store.is_closed


async def test_missing_connection_is_named() -> None:
    with pytest.raises(SpecInvalid, match="agents/main") as error:
        await Bench().connections.use(MEMORY, itself)

    assert error.value.reason == "ConnectionNotFound"


async def test_connection_of_another_namespace_is_not_found() -> None:
    bench = Bench()
    document = connection_document()
    document["metadata"]["namespace"] = "elsewhere"
    bench.table.put(document)

    with pytest.raises(SpecInvalid):
        await bench.connections.use(MEMORY, itself)


async def test_missing_key_is_named() -> None:
    bench = Bench()
    bench.table.put(KEYED)

    with pytest.raises(SecretMissing, match="agents/qdrant"):
        await bench.connections.use(MEMORY, itself)


@pytest.mark.parametrize("spec", [{}, {"embedding": {"provider": "openai"}}])
async def test_embedding_without_secret_reads_none(spec: dict[str, Any]) -> None:
    bench = Bench()

    await bench.connections.check_embedding_secret(parse_agent_memory(memory_document(**spec)))

    assert bench.secrets.reads == 0


async def test_missing_embedding_secret_is_named() -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}

    with pytest.raises(SecretMissing, match="agents/openai"):
        await Bench().connections.check_embedding_secret(parse_agent_memory(memory_document(embedding=embedding)))


@pytest.mark.parametrize("version", ["1.18.0", "1.18.3", "1.20.1-dev", "2.0.0", "dev"])
async def test_recent_version_is_accepted(version: str) -> None:
    bench = Bench()
    bench.store.server_version = version

    assert await bench.connections.probe(CONNECTION) == (ServerCapabilities(version, 1, False), False)


@pytest.mark.parametrize("version", ["1.17.9", "1.9.0", "0.11.1"])
async def test_old_version_is_rejected_with_the_remedy(version: str) -> None:
    bench = Bench()
    bench.store.server_version = version

    with pytest.raises(SpecInvalid, match=r"older than 1\.18: upgrade") as error:
        await bench.connections.probe(CONNECTION)

    assert error.value.reason == "QdrantTooOld"


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), StoreRejected(401, "key"), SpecInvalid("QdrantTooOld", "o")]
)
async def test_objects_get_the_error_of_the_last_probe(error: AgentMemoryError) -> None:
    """The server is not called again."""
    bench = Bench()
    bench.table.put(connection_document())
    bench.store.error = error
    with pytest.raises(type(error)):
        await bench.connections.probe(CONNECTION)
    bench.store.error = None

    with pytest.raises(type(error), match=str(error)):
        await bench.connections.use(MEMORY, itself)

    assert (await bench.connections.probe(CONNECTION))[1] is True
    assert (await bench.connections.probe(CONNECTION))[1] is False
    assert await bench.connections.survey(key_of(CONNECTION), itself) is bench.store


async def test_latest_error_replaces_the_earlier() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    for error in (StoreUnavailable("away"), StoreRejected(401, "wrong key")):
        bench.store.error = error
        with pytest.raises(type(error)):
            await bench.connections.probe(CONNECTION)

    with pytest.raises(StoreRejected, match="wrong key"):
        await bench.connections.use(MEMORY, itself)


async def test_forgotten_connection_has_no_fault() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    bench.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await bench.connections.probe(CONNECTION)

    bench.connections.forget(key_of(connection_document()))
    bench.connections.forget(key_of(connection_document()))

    assert await bench.connections.use(MEMORY, itself) is not None


async def test_forgotten_connection_closes_its_store() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    await bench.connections.use(MEMORY, itself)

    bench.connections.forget(key_of(connection_document()))
    await asyncio.sleep(0.01)

    assert bench.store.is_closed


async def test_endless_response_counts_as_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBE_TIMEOUT_S", 0.01)
    bench = Bench()
    bench.store = SilentStore()
    bench.table.put(CONNECTION)

    with pytest.raises(StoreUnavailable, match="no answer to a probe"):
        await bench.connections.probe(CONNECTION)

    assert bench.connections.has_fault(key_of(CONNECTION))


@pytest.mark.parametrize("error", [None, StoreUnavailable("away"), StoreRejected(401, "wrong key")])
async def test_deletion_during_a_probe_leaves_no_state(
    error: AgentMemoryError | None,
) -> None:
    bench = Bench()
    bench.store.error = error

    with contextlib.suppress(AgentMemoryError):
        await bench.connections.probe(CONNECTION)

    state = bench.connections
    assert [*state._links, *state._faults, *state._servers, *state._failures, *state._probed_at, *state._parsed] == []
