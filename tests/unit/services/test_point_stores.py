"""The point store of each agent's connection."""

from typing import Any, cast

import pytest

from agentmemory_operator.domain.effective import AgentSettings, effective_settings
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports import PointStore
from agentmemory_operator.services.connections import Endpoint
from agentmemory_operator.services.objects import ObjectTable, key_of
from agentmemory_operator.services.point_stores import PointStores
from tests.support.fakes import FakeSecrets, connection_document, memory_document

KEYED = connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"})


class Bench:
    """Point stores that are told apart by their endpoint."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.table, self.secrets = ObjectTable(), FakeSecrets({("agents", "qdrant", "k"): "s3cret"})
        self.opened: list[Endpoint] = []
        self.stores = PointStores(self.table, self.secrets, self._open)
        for document in documents:
            self.table.put(document)

    def _open(self, endpoint: Endpoint) -> PointStore:
        self.opened.append(endpoint)
        return cast(PointStore, object())


def agent(connection: str = "main") -> AgentSettings:
    return effective_settings(parse_agent_memory(memory_document(connectionRef={"name": connection})))


async def test_agents_of_one_endpoint_share_a_store() -> None:
    bench = Bench(connection_document(), connection_document("other"))

    assert await bench.stores.store_for(agent()) is await bench.stores.store_for(agent("other"))
    assert len(bench.opened) == 1


async def test_the_key_is_read_once_while_the_connection_stays() -> None:
    bench = Bench(KEYED)

    first = await bench.stores.store_for(agent())
    bench.table.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}) | {"status": {"version": "1"}})

    assert await bench.stores.store_for(agent()) is first
    assert bench.secrets.reads == 1


async def test_a_changed_connection_has_another_store() -> None:
    bench = Bench(connection_document())
    first = await bench.stores.store_for(agent())
    bench.table.put(connection_document(url="http://elsewhere:6333"))

    assert await bench.stores.store_for(agent()) is not first
    assert [endpoint.url for endpoint in bench.opened] == ["http://qdrant:6333", "http://elsewhere:6333"]


async def test_a_connection_that_is_not_there_is_unavailable_by_name() -> None:
    with pytest.raises(StoreUnavailable, match="agents/main"):
        await Bench().stores.store_for(agent())


async def test_a_connection_that_was_deleted_is_unavailable_though_it_was_known() -> None:
    bench = Bench(connection_document())
    await bench.stores.store_for(agent())
    bench.table.remove(key_of(connection_document()))

    with pytest.raises(StoreUnavailable):
        await bench.stores.store_for(agent())


@pytest.mark.parametrize(
    ("document", "words"),
    [(KEYED, "agents/qdrant"), (connection_document(url="nonsense"), "spec.url")],
    ids=["no Secret", "not valid"],
)
async def test_a_connection_that_cannot_be_used_is_unavailable_with_the_reason(
    document: dict[str, Any], words: str
) -> None:
    bench = Bench(document)
    bench.secrets.values = {}

    with pytest.raises(StoreUnavailable, match=words):
        await bench.stores.store_for(agent())
