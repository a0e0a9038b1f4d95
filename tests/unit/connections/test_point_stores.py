"""Point store of each agent's connection."""

import asyncio
from typing import Any, cast

import pytest

from agentmemory_operator.connections import link as links
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.point_stores import PointStores
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.object_table import ObjectTable, key_of
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.fakes import FakeSecrets
from tests.support.spec.documents import connection_document, memory_document

KEYED = connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"})


class Bench:
    """`PointStores` that records opened endpoints and closed keys."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.table, self.secrets = ObjectTable(), FakeSecrets({("agents", "qdrant", "k"): "s3cret"})
        self.opened: list[Endpoint] = []
        self.closed: list[str] = []
        self.server_key = "s3cret"
        self.stores = PointStores(self.table, self.secrets, self._open)
        for document in documents:
            self.table.put(document)

    def _open(self, endpoint: Endpoint) -> PointStore:
        self.opened.append(endpoint)
        return cast(PointStore, Points(endpoint, self))


class Points:
    """Fake of the point store calls that the tests use."""

    def __init__(self, endpoint: Endpoint, bench: Bench) -> None:
        self._endpoint = endpoint
        self._bench = bench

    async def count(self, collection: str, filter_: dict[str, Any] | None, *, exact: bool = True) -> int:
        if self._endpoint.api_key != self._bench.server_key:
            raise StoreRejected(401, "wrong key")
        return 1

    async def close(self) -> None:
        self._bench.closed.append(str(self._endpoint.api_key))


def _refuse(endpoint: Endpoint) -> PointStore:
    raise SpecInvalid("InvalidCA", "it is no certificate")


def agent(connection: str = "main", namespace: str | None = None) -> AgentSettings:
    ref = {"name": connection, "namespace": namespace}
    return effective_settings(parse_agent_memory(memory_document(connectionRef=ref)))


async def test_foreign_connection_needs_permission() -> None:
    bench = Bench(connection_document(namespace="infra", namespaces={"from": "All"}))
    elsewhere = agent("main", "infra")
    assert await bench.stores.store_for(elsewhere)

    bench.table.put(connection_document(namespace="infra"))

    with pytest.raises(StoreUnavailable, match="may not be used from namespace agents"):
        await bench.stores.store_for(elsewhere)


async def test_status_of_a_foreign_connection_needs_permission() -> None:
    """Its usage is no matter of a namespace that the owner does not let in."""
    status = {"capacity": {"memoryMaps": {"used": 1, "limit": 2}}}
    bench = Bench(connection_document(namespace="infra", namespaces={"from": "All"}) | {"status": status})
    assert await bench.stores.read_status(agent("main", "infra")) == status

    bench.table.put(connection_document(namespace="infra") | {"status": status})

    with pytest.raises(SpecInvalid, match="may not be used from namespace agents"):
        await bench.stores.read_status(agent("main", "infra"))


async def test_key_is_read_in_the_connections_namespace() -> None:
    ref = {"name": "qdrant", "key": "k"}
    bench = Bench(connection_document(namespace="infra", namespaces={"from": "All"}, apiKeySecretRef=ref))
    bench.secrets.values = {("infra", "qdrant", "k"): "infra's", ("agents", "qdrant", "k"): "agents'"}

    await bench.stores.store_for(agent("main", "infra"))

    assert [endpoint.api_key for endpoint in bench.opened] == ["infra's"]


async def test_agents_of_one_connection_share_a_store() -> None:
    bench = Bench(connection_document())

    assert await bench.stores.store_for(agent()) is await bench.stores.store_for(agent())
    assert len(bench.opened) == 1


async def test_concurrent_agents_share_a_store() -> None:
    bench = Bench(KEYED)

    first, second = await asyncio.gather(*(bench.stores.store_for(agent()) for _ in range(2)))

    assert first is second
    assert len(bench.opened) == 1


async def test_rejected_key_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The open store continues with the new key; no agent is opened again."""
    monkeypatch.setattr(links, "MIN_READ_PERIOD_S", 0.0)
    bench = Bench(KEYED)
    store = await bench.stores.store_for(agent())
    assert await store.count("c", None) == 1
    bench.server_key = "rotated"
    with pytest.raises(StoreRejected):
        await store.count("c", None)

    bench.secrets.values = {("agents", "qdrant", "k"): "rotated"}

    assert await store.count("c", None) == 1
    assert await bench.stores.store_for(agent()) is store
    assert bench.closed == ["s3cret"]


async def test_invalid_secret_value_is_reported() -> None:
    bench = Bench(KEYED)
    bench.stores = PointStores(bench.table, bench.secrets, _refuse)

    with pytest.raises(StoreUnavailable, match="no certificate"):
        await bench.stores.store_for(agent())


async def test_key_is_read_once_while_the_spec_is_unchanged() -> None:
    bench = Bench(KEYED)

    first = await bench.stores.store_for(agent())
    bench.table.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}) | {"status": {"version": "1"}})

    assert await bench.stores.store_for(agent()) is first
    assert bench.secrets.reads == 1


async def test_changed_connection_gets_a_new_store() -> None:
    bench = Bench(connection_document())
    first = await bench.stores.store_for(agent())
    bench.table.put(connection_document(url="http://elsewhere:6333"))

    assert await bench.stores.store_for(agent()) is not first
    assert [endpoint.url for endpoint in bench.opened] == ["http://qdrant:6333", "http://elsewhere:6333"]


async def test_missing_connection_is_named() -> None:
    with pytest.raises(StoreUnavailable, match="agents/main"):
        await Bench().stores.store_for(agent())


async def test_deleted_connection_is_unavailable() -> None:
    bench = Bench(connection_document())
    await bench.stores.store_for(agent())
    bench.table.remove(key_of(connection_document()))

    with pytest.raises(StoreUnavailable):
        await bench.stores.store_for(agent())


@pytest.mark.parametrize(
    ("document", "message"),
    [(KEYED, "agents/qdrant"), (connection_document(url="nonsense"), "spec.url")],
    ids=["no Secret", "not valid"],
)
async def test_unusable_connection_is_reported(document: dict[str, Any], message: str) -> None:
    bench = Bench(document)
    bench.secrets.values = {}

    with pytest.raises(StoreUnavailable, match=message):
        await bench.stores.store_for(agent())


@pytest.mark.parametrize("namespace", ["agents", "infra"])
@pytest.mark.parametrize("broken", [{"url": "nonsense"}, {"namespaces": {"from": "Everybody"}}, None, []], ids=str)
async def test_invalid_edit_makes_the_connection_unavailable(namespace: str, broken: object) -> None:
    """The last valid spec is not used: an edit with a typo may withdraw access, too."""
    before = connection_document(namespace=namespace, namespaces={"from": "All"})
    bench, settings = Bench(before), agent("main", namespace)
    assert await bench.stores.store_for(settings)
    spec = before["spec"] | broken if isinstance(broken, dict) else broken
    bench.table.put(
        {name: value for name, value in before.items() if name != "spec"} | ({"spec": spec} if spec else {})
    )

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="spec"):
            await bench.stores.store_for(settings)


@pytest.mark.parametrize(
    ("status", "expected"),
    [({"capabilities": ["minMax", "formula"]}, {"minMax", "formula"}), ({}, set()), (None, set())],
)
def test_capabilities_are_read_from_the_status(status: dict[str, Any] | None, expected: set[str]) -> None:
    bench = Bench(connection_document() | {"status": status})

    assert bench.stores.capabilities_of(agent()) == expected
    assert bench.stores.capabilities_of(agent("elsewhere")) == frozenset()


async def test_agents_with_own_secrets_have_own_stores() -> None:
    bench = Bench(KEYED)
    own = {slug: FakeSecrets({("agents", "qdrant", "k"): f"token of {slug}"}) for slug in ("one", "two")}
    stores = PointStores(bench.table, bench.secrets, bench._open, secrets_of=own.__getitem__)
    one, two = (effective_settings(parse_agent_memory(memory_document(slug))) for slug in own)

    assert await stores.store_for(one) is not await stores.store_for(two)
    assert await stores.store_for(one) is await stores.store_for(one)
    assert [endpoint.api_key for endpoint in bench.opened] == ["token of one", "token of two"]
    assert bench.secrets.reads == 0

    stores.forget_agent("one")
    await asyncio.sleep(0)
    assert bench.closed == ["token of one"]
