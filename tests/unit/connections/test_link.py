"""Link to one server: when it reads Secrets again and when it closes the previous store."""

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
    """Store of a server that accepts one key."""

    endpoint: Endpoint
    server: "Server"
    is_closed: bool = False

    async def close(self) -> None:
        self.is_closed = True

    async def call(self) -> str:
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
        """Accept another key, which the Secret already contains."""
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
async def test_endpoint_contains_the_secret_values(spec: dict[str, Any], endpoint: Endpoint) -> None:
    assert await read_endpoint(parse_connection(connection_document(**spec)), FakeSecrets(secret("s3cret"))) == endpoint


@pytest.mark.parametrize(
    ("options", "sent_to", "expected"),
    [
        ({}, destinations_of("http://qdrant:6333", "http://qdrant-0:6333"), ("http://qdrant:6333", 1)),
        ({"has_nodes": False}, destinations_of("http://qdrant:6333"), ("http://qdrant:6333", 0)),
        ({"url": "http://127.0.0.1:1"}, destinations_of("http://qdrant-0:6333"), ("http://127.0.0.1:1", 1)),
        ({"url": "http://127.0.0.1:1", "has_nodes": False}, BY_HAND, ("http://127.0.0.1:1", 0)),
    ],
)
async def test_key_is_requested_for_all_its_destinations(
    options: dict[str, Any], sent_to: Destination, expected: tuple[str, int]
) -> None:
    """An address given on the command line is no destination that the Secret has to allow."""
    secrets = FakeSecrets(secret("s3cret"))
    connection = connection_document(apiKeySecretRef=KEY_REF, nodes=["http://qdrant-0:6333"])

    endpoint = await read_endpoint(parse_connection(connection), secrets, **options)

    assert secrets.sent_to == [sent_to]
    assert (endpoint.url, len(endpoint.nodes)) == expected


async def test_certificate_has_no_destination() -> None:
    secrets = FakeSecrets(secret("s3cret"))

    await read_endpoint(parse_connection(connection_document(**TLS)), secrets)

    assert secrets.sent_to == [NOWHERE]


async def test_withdrawn_permission_closes_the_store(server: Server) -> None:
    server.secrets.hosts["agents", "qdrant"] = "qdrant"
    link: Link[Store] = Link(GuardedSecrets(server.secrets, "Require"), server.open)
    await link.use(KEYED, Store.call)

    server.secrets.hosts["agents", "qdrant"] = "elsewhere"
    with pytest.raises(SecretNotUsable):
        await link.renew(KEYED)

    assert server.opened[0].is_closed
    with pytest.raises(SecretNotUsable):
        await link.use(KEYED, Store.call)


async def test_endpoint_repr_hides_secrets() -> None:
    text = repr(Endpoint("https://qdrant:6333", "s3cret", 10, "PEM"))

    assert "s3cret" not in text
    assert "PEM" not in text


async def test_unchanged_secrets_are_read_once(server: Server) -> None:
    link = server.link()

    for _ in range(3):
        assert await link.use(KEYED, Store.call) == "old"

    assert (server.secrets.reads, len(server.opened)) == (1, 1)


async def test_concurrent_callers_share_one_store(server: Server) -> None:
    link = server.link()

    await asyncio.gather(*(link.use(KEYED, Store.call) for _ in range(5)))

    assert len(server.opened) == 1


async def test_changed_spec_replaces_the_store(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.call)

    await link.use(connection_document(apiKeySecretRef=KEY_REF, timeoutSeconds=4), Store.call)

    assert [store.is_closed for store in server.opened] == [True, False]


async def test_rejected_key_is_reread_and_the_call_repeated(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.call)
    server.rotate("new")

    assert await link.use(KEYED, Store.call) == "new"
    assert [store.is_closed for store in server.opened] == [True, False]


async def test_untrusted_certificate_rereads_ca(server: Server) -> None:
    server.refusal = TlsVerificationFailed("unable to get local issuer certificate")
    link = server.link()
    await link.use(KEYED, Store.call)
    server.rotate("new")

    assert await link.use(KEYED, Store.call) == "new"


async def test_concurrent_rejections_share_a_store(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.call)
    server.rotate("new")

    assert await asyncio.gather(*(link.use(KEYED, Store.call) for _ in range(5))) == ["new"] * 5

    assert len(server.opened) == 2


@pytest.mark.parametrize("error", [StoreRejected(400, "bad"), StoreUnavailable("away"), TransientError("other")])
async def test_other_errors_do_not_reread_secrets(server: Server, error: AgentMemoryError) -> None:
    server.refusal = error
    link = server.link()
    await link.open(KEYED)
    server.rotate("new")

    with pytest.raises(type(error)):
        await link.use(KEYED, Store.call)

    assert server.secrets.reads == 1


async def test_wrong_key_fails_after_one_call(server: Server) -> None:
    server.key = "another"
    link = server.link()

    with pytest.raises(StoreRejected):
        await link.use(KEYED, Store.call)

    assert (server.calls, len(server.opened)) == (1, 1)


async def test_wrong_key_does_not_reread_on_every_call() -> None:
    server = Server(key="another")
    link = server.link()

    for _ in range(20):
        with pytest.raises(StoreRejected):
            await link.use(KEYED, Store.call)

    assert server.secrets.reads == 1


async def test_missing_secret_keeps_the_servers_error(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.call)
    server.key, server.secrets.values = "new", {}

    with pytest.raises(StoreRejected):
        await link.use(KEYED, Store.call)
    with pytest.raises(SecretMissing):
        await link.renew(KEYED)


async def test_renewal_without_changes_keeps_the_store(server: Server) -> None:
    link = server.link()
    await link.use(KEYED, Store.call)

    await link.renew(KEYED)

    assert len(server.opened) == 1
    assert not server.opened[0].is_closed


async def test_renewal_finds_a_new_key_before_it_is_required(server: Server) -> None:
    """During a rotation the server accepts both keys."""
    link = server.link()
    await link.use(KEYED, Store.call)
    server.secrets.values = secret("new")

    await link.renew(KEYED)

    assert server.opened[-1].endpoint.api_key == "new"


async def test_replaced_store_closes_after_its_last_use(server: Server) -> None:
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


async def test_close_waits_for_the_last_use(server: Server) -> None:
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
