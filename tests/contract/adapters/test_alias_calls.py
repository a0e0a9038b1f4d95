"""Alias moves, verified by reading the alias afterwards."""

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.runtime.metrics import NO_TRACES
from tests.support.web.qdrant_proxy import Fault, Proxy, serve_proxy

EMPTY = {"vectors": {"size": 4, "distance": "Dot"}}


@pytest.fixture
def proxy(qdrant_url: str) -> Iterator[Proxy]:
    with serve_proxy(qdrant_url) as server:
        yield server


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[QdrantCollections]:
    adapter = QdrantCollections(proxy.url)
    yield adapter
    await adapter.close()


@pytest.fixture
def alias(qdrant_url: str) -> Iterator[str]:
    """Name of an alias that does not exist yet, with two collections for it."""
    name = f"agent_memory_a-{uuid.uuid4().hex[:8]}"
    with httpx.Client(base_url=qdrant_url) as http:
        for number in (1, 2):
            http.put(f"/collections/{name}__{number}", json=EMPTY).raise_for_status()
        yield name
        for number in (1, 2):
            http.delete(f"/collections/{name}__{number}")


async def test_fails_if_alias_points_elsewhere(proxy: Proxy, store: QdrantCollections, alias: str) -> None:
    """The store does not move the alias back, because another process may own it."""
    proxy.stolen_by = f"{alias}__2"

    with pytest.raises(StoreUnavailable, match=f"{alias} was switched to {alias}__1 but points elsewhere"):
        await store.apply(f"{alias}__1", SetAlias(alias, f"{alias}__1"))

    assert [call for call in proxy.mutations() if call[1].endswith("/aliases")] == [("POST", "/collections/aliases")]


@pytest.mark.parametrize("fault", [None, Fault(cut="head", of="writes"), Fault(status=503)])
async def test_leadership_is_checked_after_each_move(
    proxy: Proxy, store: QdrantCollections, alias: str, fault: Fault | None
) -> None:
    checks: list[str] = []

    async def after_move() -> None:
        checks.append(alias)

    store.watch_calls(
        CallHooks(before_write=lambda: None, count_call=lambda *_: None, tracer=NO_TRACES, after_move=after_move)
    )
    proxy.fault = fault
    try:
        await store.apply(f"{alias}__1", SetAlias(alias, f"{alias}__1"))
    except StoreUnavailable:
        assert fault is not None

    assert checks == [alias]
