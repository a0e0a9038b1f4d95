"""Access to one agent's points: a token for its alias, never the key of the server."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import jwt
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.point_stores import TOKEN_LIFETIME_S, ScopedPointStores
from agentmemory_operator.connections.probe import Connections, ServerAccess
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import memory_document

KEY = "the-key-of-the-whole-server-which-is-long-enough"
MEMORY = parse_agent_memory(memory_document("a"))


class Closing:
    """A store that records whether it is closed."""

    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class Server:
    """A server that records the keys used to open its points."""

    has_jwt_rbac: bool | None
    api_key: str | None = KEY
    opened: list[str | None] = field(default_factory=list)
    store: Closing = field(default_factory=Closing)

    async def access(self, memory: Any) -> ServerAccess:
        nothing: Any = None
        endpoint = Endpoint("http://qdrant", self.api_key, 5)
        return ServerAccess(connection=nothing, endpoint=endpoint, has_jwt_rbac=self.has_jwt_rbac)

    def points(self, endpoint: Endpoint) -> PointStore:
        self.opened.append(endpoint.api_key)
        return cast(PointStore, self.store)

    async def open(self) -> None:
        only = ScopedPointStores(cast(Connections, self), self.points, QdrantTokens(), SystemClock())
        async with only.open_store(MEMORY):
            assert not self.store.is_closed


async def test_token_is_short_lived_and_scoped_to_the_alias() -> None:
    server = Server(has_jwt_rbac=True)

    await server.open()

    (token,) = server.opened
    assert token is not None
    claims = jwt.decode(token, KEY, algorithms=["HS256"])
    assert claims["access"] == [{"collection": "agent_memory_a", "access": "prw"}]
    assert 0 < claims["exp"] - time.time() <= TOKEN_LIFETIME_S
    assert server.store.is_closed


@pytest.mark.parametrize("api_key", [KEY, None])
async def test_server_without_tokens_is_opened_with_the_key(api_key: str | None) -> None:
    server = Server(has_jwt_rbac=False, api_key=api_key)

    await server.open()

    assert server.opened == [api_key]


async def test_unknown_token_support_opens_nothing() -> None:
    server = Server(has_jwt_rbac=None)

    with pytest.raises(StoreUnavailable):
        await server.open()

    assert server.opened == []
