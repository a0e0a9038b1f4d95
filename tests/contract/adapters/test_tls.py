"""TLS of both Qdrant clients: trusted authorities and errors."""

import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.errors import NotFound, OutcomeUnknown, SpecInvalid, StoreUnavailable, TlsVerificationFailed
from tests.support.patience import Patience
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import Authority

Client = QdrantCollections | QdrantPoints
both_clients = pytest.mark.parametrize("client", [QdrantCollections, QdrantPoints])
NO_HANG_S = 3.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs the server's certificate."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development Qdrant server with TLS."""
    with dev_qdrant(tmp_path_factory.mktemp("qdrant"), tls=authority.issue()) as url:
        yield url


@asynccontextmanager
async def open_store(client: Callable[..., Client], url: str, ca_pem: str | None = None) -> AsyncIterator[Client]:
    store = client(url, ca_pem=ca_pem, timeout_s=5)
    try:
        yield store
    finally:
        await store.close()


async def ask(store: Client) -> None:
    """Make a call that reads."""
    if isinstance(store, QdrantCollections):
        assert await store.observe("nothing", "nothing__1") is None
    else:
        with pytest.raises(NotFound):
            await store.describe("nothing")


@both_clients
async def test_certificate_of_given_ca_is_accepted(client: type[Client], url: str, authority: Authority) -> None:
    async with open_store(client, url, authority.pem) as store:
        await ask(store)


@both_clients
async def test_bundle_of_authorities_is_accepted(
    client: type[Client], url: str, authority: Authority, tmp_path: pathlib.Path
) -> None:
    """A bundle has two authorities during a rotation."""
    async with open_store(client, url, Authority(tmp_path).pem + authority.pem) as store:
        await ask(store)


@both_clients
@pytest.mark.parametrize("is_named", [False, True], ids=["the system's", "another"])
async def test_unknown_authority_is_rejected_at_once(
    client: type[Client], is_named: bool, url: str, tmp_path: pathlib.Path
) -> None:
    """The message names the field to correct."""
    other = Authority(tmp_path).pem if is_named else None
    at_once = Patience(NO_HANG_S)

    async with open_store(client, url, other) as store:
        with pytest.raises(TlsVerificationFailed, match=r"certificate was rejected \(.*issuer.*spec\.tls\.caSecretRef"):
            await ask(store)

    assert not at_once.is_over


@both_clients
async def test_certificate_of_other_host_is_rejected(
    client: type[Client], authority: Authority, tmp_path: pathlib.Path
) -> None:
    with dev_qdrant(tmp_path, tls=authority.issue(host="qdrant.example")) as elsewhere:
        async with open_store(client, elsewhere, authority.pem) as store:
            with pytest.raises(TlsVerificationFailed, match=r"IP address mismatch.*spec\.url"):
                await ask(store)


@both_clients
async def test_server_without_tls_is_named(client: type[Client], authority: Authority, tmp_path: pathlib.Path) -> None:
    with dev_qdrant(tmp_path) as plain:
        async with open_store(client, plain.replace("http:", "https:"), authority.pem) as store:
            with pytest.raises(TlsVerificationFailed, match=r"TLS handshake with the server failed"):
                await ask(store)


@both_clients
async def test_plain_http_to_tls_server_is_unavailable(client: type[Client], url: str) -> None:
    async with open_store(client, url.replace("https:", "http:")) as store:
        with pytest.raises(StoreUnavailable):
            await ask(store)


async def test_untrusted_server_is_no_unknown_outcome(url: str) -> None:
    async with open_store(QdrantPoints, url) as store:
        assert isinstance(store, QdrantPoints)
        with pytest.raises(TlsVerificationFailed) as caught:
            await store.upsert("nothing", [])

    assert not isinstance(caught.value, OutcomeUnknown)


@both_clients
@pytest.mark.parametrize("ca_pem", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "é"])
def test_invalid_ca_is_rejected_with_its_field(client: type[Client], ca_pem: str) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.tls\.caSecretRef") as caught:
        client("https://qdrant:6333", ca_pem=ca_pem)

    assert caught.value.reason == "InvalidCA"
