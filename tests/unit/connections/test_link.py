"""The link to one server: when Secrets are read again, and what becomes of the store before."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.connections import link as links
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import Endpoint, Link, read_endpoint
from agentmemory_operator.connections.rules.host_lists import BY_HAND, NOWHERE, Destination, destinations_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    SecretMissing,
    SecretNotUsable,
    StoreRejected,
    StoreUnavailable,
    TlsVerificationFailed,
    TransientError,
)
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.engine.fakes import FakeSecrets
from tests.support.spec.documents import connection_document

KEY_REF, CA_REF = {"name": "qdrant", "key": "k"}, {"name": "ca", "key": "c"}
TLS = {"url": "https://qdrant:6333", "tls": {"caSecretRef": CA_REF}}
KEYED = connection_document(apiKeySecretRef=KEY_REF, timeoutSeconds=3)


def secret(key: str) -> dict[tuple[str, str, str], str]:
    return {("agents", "qdrant", "k"): key, ("agents", "ca", "c"): "PEM"}


@dataclass(slots=True)
class Store:
    """A server that takes one key."""

    endpoint: Endpoint
    server: "Server"
    is_closed: bool = False

    async def close(self) -> None:
        self.is_closed = True

    async def ask(self) -> str:
        self.server.calls += 1
        await asyncio.sleep(0)
        if self.endpoint.api_key != self.server.key:
            raise self.server.refusal
        return str(self.endpoint.api_key)


@dataclass(slots=True)
class Server:
    key: str = "old"
    refusal: AgentMemoryError = field(default_factory=lambda: StoreRejected(401, "wrong key"))
    calls: int = 0
    opened: list[Store] = field(default_factory=list)
    secrets: FakeSecrets = field(default_factory=lambda: FakeSecrets(secret("old")))

    def link(self) -> Link[Store]:
        return Link(self.secrets, self.open)

    def rotate(self, key: str) -> None:
        """Take another key, which the Secret holds already."""
        self.key = key
        self.secrets.values = secret(key)

    def open(self, endpoint: Endpoint) -> Store:
        self.opened.append(Store(endpoint, self))
        return self.opened[-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server whose Secret may be read at any time."""
    monkeypatch.setattr(links, "MIN_READ_PERIOD_S", 0.0)
    return Server()


@pytest.mark.parametrize(
    ("spec", "endpoint"),
    [
        ({}, Endpoint("http://qdrant:6333", None, 10)),
        ({"apiKeySecretRef": KEY_REF, "timeoutSeconds": 3}, Endpoint("http://qdrant:6333", "s3cret", 3)),
        (TLS, Endpoint("https://qdrant:6333", None, 10, "PEM")),
    ],
)
async def test_an_endpoint_is_the_connection_with_what_its_secrets_hold(
    spec: dict[str, Any], endpoint: Endpoint
) -> None:
    assert await read_endpoint(parse_connection(connection_document(**spec)), FakeSecrets(secret("s3cret"))) == endpoint


@pytest.mark.parametrize(
    ("asked", "sent_to", "reached"),
    [
        ({}, destinations_of("http://qdrant:6333", "http://qdrant-0:6333"), ("http://qdrant:6333", 1)),
        ({"has_nodes": False}, destinations_of("http://qdrant:6333"), ("http://qdrant:6333", 0)),
        ({"url": "http://127.0.0.1:1"}, destinations_of("http://qdrant-0:6333"), ("http://127.0.0.1:1", 1)),
        ({"url": "http://127.0.0.1:1", "has_nodes": False}, BY_HAND, ("http://127.0.0.1:1", 0)),
    ],
)
async def test_a_key_is_asked_for_with_every_place_that_it_goes_to(
    asked: dict[str, Any], sent_to: Destination, reached: tuple[str, int]
) -> None:
    """What a person has typed on the command line is theirs to choose."""
    secrets = FakeSecrets(secret("s3cret"))
    connection = connection_document(apiKeySecretRef=KEY_REF, nodes=["http://qdrant-0:6333"])

    endpoint = await read_endpoint(parse_connection(connection), secrets, **asked)

    assert secrets.sent_to == [sent_to]
    assert (endpoint.url, len(endpoint.nodes)) == reached


async def test_a_certificate_goes_nowhere() -> None:
    secrets = FakeSecrets(secret("s3cret"))

    await read_endpoint(parse_connection(connection_document(**TLS)), secrets)

    assert secrets.sent_to == [NOWHERE]


async def test_a_leave_that_is_taken_back_closes_the_store(server: Server) -> None:
    server.secrets.hosts["agents", "qdrant"] = "qdrant"
    link: Link[Store] = Link(GuardedSecrets(server.secrets, "Require"), server.open)
    await link.use(KEYED, Store.ask)

    server.secrets.hosts["agents", "qdrant"] = "elsewhere"
    with pytest.raises(SecretNotUsable):
        await link.renew(KEYED)

    assert server.opened[0].is_closed
    with pytest.raises(SecretNotUsable):
        await link.use(KEYED, Store.ask)


async def test_an_endpoint_does_not_show_what_the_secrets_hold() -> None:
    shown = repr(Endpoint("https://qdrant:6333", "s3cret", 10, "PEM"))

    assert "s3cret" not in shown
    assert "PEM" not in shown


async def test_the_secrets_are_read_once_while_nothing_changes(server: Server) -> None:
    link = server.link()

    for _ in range(3):
        assert await link.use(KEYED, Store.ask) == "old"

    assert (server.secrets.reads, len(server.opened)) == (1, 1)


async def test_callers_that_come_together_open_one_store(server: Server) -> None:
    link = server.link()

    await asyncio.gather(*(link.use(KEYED, Store.ask) for _ in range(5)))

    assert len(server.opened) == 1


async def test_another_spec_is_another_store_and_the_old_one_is_closed(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.ask)

    await link.use(connection_document(apiKeySecretRef=KEY_REF, timeoutSeconds=4), Store.ask)

    assert [store.is_closed for store in server.opened] == [True, False]


async def test_a_refused_key_is_read_again_and_the_work_done_with_the_new_one(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.ask)
    server.rotate("new")

    assert await link.use(KEYED, Store.ask) == "new"
    assert [store.is_closed for store in server.opened] == [True, False]


async def test_a_server_that_is_not_trusted_any_more_has_its_authority_read_again(server: Server) -> None:
    server.refusal = TlsVerificationFailed("unable to get local issuer certificate")
    link = server.link()
    await link.use(KEYED, Store.ask)
    server.rotate("new")

    assert await link.use(KEYED, Store.ask) == "new"


async def test_calls_that_are_refused_together_open_one_store(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.ask)
    server.rotate("new")

    assert await asyncio.gather(*(link.use(KEYED, Store.ask) for _ in range(5))) == ["new"] * 5

    assert len(server.opened) == 2


@pytest.mark.parametrize("error", [StoreRejected(400, "bad"), StoreUnavailable("away"), TransientError("other")])
async def test_an_error_that_no_key_would_change_leaves_the_secrets_alone(
    server: Server, error: AgentMemoryError
) -> None:
    server.refusal = error
    link = server.link()
    await link.open(KEYED)
    server.rotate("new")

    with pytest.raises(type(error)):
        await link.use(KEYED, Store.ask)

    assert server.secrets.reads == 1


async def test_a_key_that_stays_wrong_is_told_once_a_call(server: Server) -> None:
    server.key = "another"
    link = server.link()

    with pytest.raises(StoreRejected):
        await link.use(KEYED, Store.ask)

    assert (server.calls, len(server.opened)) == (1, 1)


async def test_a_key_that_stays_wrong_does_not_make_every_call_read_the_secret() -> None:
    server = Server(key="another")
    link = server.link()

    for _ in range(20):
        with pytest.raises(StoreRejected):
            await link.use(KEYED, Store.ask)

    assert server.secrets.reads == 1


async def test_a_secret_that_is_gone_leaves_the_servers_answer_standing(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.ask)
    server.key, server.secrets.values = "new", {}

    with pytest.raises(StoreRejected):
        await link.use(KEYED, Store.ask)
    with pytest.raises(SecretMissing):
        await link.renew(KEYED)


async def test_a_renewal_that_finds_the_same_keeps_the_store(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.ask)

    await link.renew(KEYED)

    assert len(server.opened) == 1
    assert not server.opened[0].is_closed


async def test_a_renewal_finds_a_key_that_the_server_does_not_ask_for_yet(server: Server) -> None:
    """As it is while a server takes the old key and the new one."""
    link = server.link()
    await link.use(KEYED, Store.ask)
    server.secrets.values = secret("new")

    await link.renew(KEYED)

    assert server.opened[-1].endpoint.api_key == "new"


async def test_a_store_that_is_replaced_is_closed_after_its_last_use_and_not_before(server: Server) -> None:
    link, gate = server.link(), asyncio.Event()

    async def wait(store: Store) -> bool:
        await gate.wait()
        return store.is_closed

    slow = [asyncio.create_task(link.use(KEYED, wait)) for _ in range(2)]
    await asyncio.sleep(0)
    server.rotate("new")
    await link.renew(KEYED)
    assert not server.opened[0].is_closed

    gate.set()

    assert await asyncio.gather(*slow) == [False, False]
    assert server.opened[0].is_closed


async def test_closing_waits_for_the_last_use_too(server: Server) -> None:
    link, gate = server.link(), asyncio.Event()

    async def wait(_: Store) -> None:
        await gate.wait()

    slow = asyncio.create_task(link.use(KEYED, wait))
    await asyncio.sleep(0)
    await link.close()
    assert not server.opened[0].is_closed

    gate.set()
    await slow

    assert server.opened[0].is_closed
