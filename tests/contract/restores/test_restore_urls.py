"""A restore from a URL: TLS, checksum, allowed hosts."""

import hashlib
import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest

from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StorageUnavailable
from tests.support.job.restore_world import POINTS, RestoreWorld
from tests.support.spec.documents import connection_document
from tests.support.web.http_server import Authority
from tests.support.web.services import WebServer, serve_files

FILE = "/backups/of one.snapshot"
ADDRESS = "/backups/of%20one.snapshot"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Certificate authority of the web servers."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def web(authority: Authority, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """Web server with a certificate that the system trusts."""
    trusted = tmp_path / "authorities.pem"
    trusted.write_text(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with serve_files(authority.issue()) as server:
        yield server


@pytest.fixture
async def world(qdrant_url: str, web: WebServer) -> AsyncIterator[RestoreWorld]:
    """Agent with a snapshot on the web server, and memories written after it."""
    world = RestoreWorld(qdrant_url)
    world.table.put(connection_document(url=qdrant_url, restoreSources=[web.host]))
    await world.create_agent(POINTS)
    web.files[FILE] = await read_new_snapshot(world)
    world.store(5, first=100)
    yield world
    await world.close()


async def read_new_snapshot(world: RestoreWorld) -> bytes:
    """Take a snapshot of the agent and return its bytes."""

    async def read(server: Server) -> bytes:
        file = await server.snapshots.create(world.physical)
        async with server.snapshots.download(world.physical, file.name) as content:
            return b"".join([chunk async for chunk in content])

    return await world.with_server(read)


def source_of(web: WebServer, *, query: str = "") -> dict[str, str]:
    return {"url": f"{web.url}{ADDRESS}{query}", "sha256": hashlib.sha256(web.files[FILE]).hexdigest()}


async def test_file_of_listed_host_is_restored(world: RestoreWorld, web: WebServer) -> None:
    """The signature in the URL appears in no status."""
    await world.run(key := world.restore(source=source_of(web, query="?signature=secret")))

    assert world.condition(key, "Succeeded") == "True/Restored", world.status(key)
    assert (world.aliases(), world.count()) == ({world.alias: f"{world.alias}__2"}, POINTS)
    assert world.files(f"{world.alias}__2") == []
    assert f"{web.url}{ADDRESS}" in world.message(key, "Succeeded")
    assert "secret" not in str(world.status(key))


@pytest.mark.parametrize("mode", ["Swap", "InPlace"])
@pytest.mark.parametrize("is_cut", [True, False])
async def test_different_checksum_is_refused(world: RestoreWorld, web: WebServer, mode: str, is_cut: bool) -> None:
    source = source_of(web)
    whole = web.files[FILE]
    web.files[FILE] = whole[: len(whole) // 2] if is_cut else whole[:-1] + bytes([whole[-1] ^ 1])

    await world.run(key := world.restore(source=source, mode=mode))

    assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
    assert "has SHA-256" in world.message(key, "Succeeded")
    world.check_untouched(key)


async def test_interrupted_download_is_retried(world: RestoreWorld, web: WebServer) -> None:
    web.cuts = 1
    key = world.restore(source=source_of(web))

    with pytest.raises(StorageUnavailable):
        await world.restores.run(key)

    assert world.condition(key, "Progressing") == "True/Retrying"
    assert world.collections() == [world.physical]
    await world.run(key)
    assert world.condition(key, "Succeeded") == "True/Restored"
    assert world.count() == POINTS


@pytest.mark.parametrize("is_listed", [True, False])
async def test_redirect_to_other_host_is_refused(
    world: RestoreWorld, web: WebServer, authority: Authority, is_listed: bool
) -> None:
    """The other host gets no request, even if it is listed."""
    with serve_files(authority.issue()) as other:
        other.files[FILE] = web.files[FILE]
        web.moved[FILE] = f"{other.url}{ADDRESS}"
        listed = [web.host, other.host] if is_listed else [web.host]
        world.table.put(connection_document(url=world.url, restoreSources=listed))

        await world.run(key := world.restore(source=source_of(web)))

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        assert f"redirects to {other.host}" in world.message(key, "Succeeded")
        assert (other.requested_paths, web.requested_paths) == ([], [FILE])
    world.check_untouched(key)


async def test_missing_file_is_refused(world: RestoreWorld, web: WebServer) -> None:
    source = source_of(web)
    web.files.clear()

    await world.run(key := world.restore(source=source))

    assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
    assert "answers HTTP 404" in world.message(key, "Succeeded")
    world.check_untouched(key)


async def test_untrusted_server_gets_no_request(
    world: RestoreWorld, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's certificate is issued by no authority of the system."""
    monkeypatch.delenv("SSL_CERT_FILE")
    key = world.restore(source=source_of(web))

    with pytest.raises(StorageUnavailable):
        await world.restores.run(key)

    assert "SSL_CERT_FILE" in world.message(key, "Progressing")
    assert web.requested_paths == []
