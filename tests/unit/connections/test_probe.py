"""Connections: from a reference to a store, and what a probe found."""

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
    """A server whose answer never ends."""

    async def server(self) -> ServerCapabilities:
        await asyncio.Event().wait()
        raise AssertionError("it never comes")


class Bench:
    """Connections over stores that are noted by endpoint."""

    def __init__(self) -> None:
        self.table = ObjectTable()
        self.secrets = FakeSecrets()
        self.opened: list[Endpoint] = []
        self.store = FakeCollectionStore()
        self.connections = Connections(self.table, self.secrets, self._open)

    def _open(self, endpoint: Endpoint) -> CollectionStore:
        self.opened.append(endpoint)
        return self.store if len(self.opened) == 1 else FakeCollectionStore()


async def test_a_connection_has_one_store_for_all_its_objects() -> None:
    bench = Bench()
    bench.table.put(connection_document())

    for memory in (MEMORY, parse_agent_memory(memory_document("b"))):
        await bench.connections.use(memory, itself)

    assert len(bench.opened) == 1


async def test_a_probe_finds_another_key() -> None:
    bench = Bench()
    bench.table.put(KEYED)
    bench.secrets.values = SECRETS
    first = await bench.connections.survey(key_of(CONNECTION), itself)
    bench.secrets.values = {("agents", "qdrant", "k"): "rotated"}

    await bench.connections.probe(KEYED)

    assert await bench.connections.survey(key_of(CONNECTION), itself) is not first
    assert [endpoint.api_key for endpoint in bench.opened] == ["s3cret", "rotated"]
    assert bench.store.is_closed


async def test_a_connection_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecInvalid, match="agents/main") as caught:
        await Bench().connections.use(MEMORY, itself)

    assert caught.value.reason == "ConnectionNotFound"


async def test_a_connection_in_another_namespace_does_not_count() -> None:
    bench = Bench()
    document = connection_document()
    document["metadata"]["namespace"] = "elsewhere"
    bench.table.put(document)

    with pytest.raises(SpecInvalid):
        await bench.connections.use(MEMORY, itself)


async def test_a_missing_key_is_named() -> None:
    bench = Bench()
    bench.table.put(KEYED)

    with pytest.raises(SecretMissing, match="agents/qdrant"):
        await bench.connections.use(MEMORY, itself)


@pytest.mark.parametrize("spec", [{}, {"embedding": {"provider": "openai"}}])
async def test_an_embedding_without_secret_needs_none(spec: dict[str, Any]) -> None:
    bench = Bench()

    await bench.connections.check_embedding_secret(parse_agent_memory(memory_document(**spec)))

    assert bench.secrets.reads == 0


async def test_a_missing_embedding_secret_is_named() -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}

    with pytest.raises(SecretMissing, match="agents/openai"):
        await Bench().connections.check_embedding_secret(parse_agent_memory(memory_document(embedding=embedding)))


@pytest.mark.parametrize("version", ["1.18.0", "1.18.3", "1.20.1-dev", "2.0.0", "dev"])
async def test_a_server_that_is_new_enough_or_does_not_tell_passes(version: str) -> None:
    bench = Bench()
    bench.store.server_version = version

    assert await bench.connections.probe(CONNECTION) == (ServerCapabilities(version, 1, False), False)


@pytest.mark.parametrize("version", ["1.17.9", "1.9.0", "0.11.1"])
async def test_a_server_that_is_too_old_is_refused_with_the_way_out(version: str) -> None:
    bench = Bench()
    bench.store.server_version = version

    with pytest.raises(SpecInvalid, match=r"older than 1\.18: upgrade") as caught:
        await bench.connections.probe(CONNECTION)

    assert caught.value.reason == "QdrantTooOld"


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), StoreRejected(401, "key"), SpecInvalid("QdrantTooOld", "o")]
)
async def test_what_a_probe_found_objects_are_told_without_asking(error: AgentMemoryError) -> None:
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


async def test_the_last_fault_found_is_the_one_told() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    for error in (StoreUnavailable("away"), StoreRejected(401, "wrong key")):
        bench.store.error = error
        with pytest.raises(type(error)):
            await bench.connections.probe(CONNECTION)

    with pytest.raises(StoreRejected, match="wrong key"):
        await bench.connections.use(MEMORY, itself)


async def test_a_connection_that_is_gone_is_known_no_more() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    bench.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await bench.connections.probe(CONNECTION)

    bench.connections.forget(key_of(connection_document()))
    bench.connections.forget(key_of(connection_document()))

    assert await bench.connections.use(MEMORY, itself) is not None


async def test_the_store_of_a_connection_that_is_gone_is_closed() -> None:
    bench = Bench()
    bench.table.put(connection_document())
    await bench.connections.use(MEMORY, itself)

    bench.connections.forget(key_of(connection_document()))
    await asyncio.sleep(0.01)

    assert bench.store.is_closed


async def test_what_never_ends_its_answer_to_a_probe_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBE_TIMEOUT_S", 0.01)
    bench = Bench()
    bench.store = SilentStore()
    bench.table.put(CONNECTION)

    with pytest.raises(StoreUnavailable, match="no answer to a probe"):
        await bench.connections.probe(CONNECTION)

    assert bench.connections.has_fault(key_of(CONNECTION))


@pytest.mark.parametrize("error", [None, StoreUnavailable("away"), StoreRejected(401, "wrong key")])
async def test_nothing_is_kept_of_a_connection_that_goes_away_while_it_is_probed(
    error: AgentMemoryError | None,
) -> None:
    bench = Bench()
    bench.store.error = error

    with contextlib.suppress(AgentMemoryError):
        await bench.connections.probe(CONNECTION)

    kept = bench.connections
    assert [*kept._links, *kept._faults, *kept._servers, *kept._failures, *kept._probed_at, *kept._parsed] == []
