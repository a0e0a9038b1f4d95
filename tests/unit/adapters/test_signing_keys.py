"""Storage of the signing key: in a folder, or in a Secret that the operator creates and the API reads."""

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from agentmemory_operator.adapters.folder.data_files import SIGNING_KEY_FILE, FileSigningKey
from agentmemory_operator.adapters.kubernetes.agent_secret_store import SECRET_PREFIX
from agentmemory_operator.adapters.kubernetes.signing_key import KEY, KEY_SECRET, KubernetesSigningKey
from agentmemory_operator.adapters.kubernetes.transport import KubernetesConflict, KubernetesTransport
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.access import SigningKey

PATH = f"/api/v1/namespaces/system/secrets/{KEY_SECRET}"


async def test_folder_keeps_the_first_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = await FileSigningKey(data).read()

    assert await FileSigningKey(data).read() == first
    assert stat.S_IMODE((data / SIGNING_KEY_FILE).stat().st_mode) == 0o600
    (data / SIGNING_KEY_FILE).unlink()
    assert await FileSigningKey(data).read() != first


def test_concurrent_starts_share_one_key(tmp_path: Path) -> None:
    def read(_: int) -> SigningKey:
        reading = FileSigningKey(tmp_path).read()
        try:
            reading.send(None)
        except StopIteration as ended:
            return cast(SigningKey, ended.value)
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        assert len({key.id for key in pool.map(read, range(8))}) == 1


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 44])
async def test_malformed_key_is_reported_with_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SIGNING_KEY_FILE).write_bytes(content)

    with pytest.raises(TransientError, match="delete it, and a new one is created"):
        await FileSigningKey(tmp_path).read()
    assert (tmp_path / SIGNING_KEY_FILE).read_bytes() == content


async def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(TransientError, match="cannot be written"):
        await FileSigningKey(tmp_path / "file").read()


class OneNamespace(KubernetesTransport):
    """API server for the Secrets of one namespace.

    Attributes:
        races: True if another operator creates a Secret right before each creation.
        exists: False if the namespace does not exist.
    """

    def __init__(self, *, races: bool = False, exists: bool = True) -> None:
        self.secrets: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.races = races
        self.exists = exists

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.calls.append((method, path))
        if not self.exists or (method == "GET" and path not in self.secrets):
            raise NotFound("Kubernetes answered 404: secrets not found")
        if method == "POST":
            path_of_new = f"{path}/{body['metadata']['name']}"
            if self.races:
                self.secrets.setdefault(path_of_new, secret_of("b" * 43 + "="))
            if path_of_new in self.secrets:
                raise KubernetesConflict("Kubernetes answered 409", status=409, causes=False)
            self.secrets[path_of_new] = body
        return self.secrets.get(path)


def secret_of(text: str) -> dict[str, Any]:
    return {"data": {KEY: base64.b64encode(text.encode()).decode()}}


def signing_key(server: OneNamespace) -> KubernetesSigningKey:
    return KubernetesSigningKey(server, "system")


async def test_operator_creates_the_key_once() -> None:
    server = OneNamespace()
    operator, api = signing_key(server), signing_key(server)

    await operator.make_missing()
    first = await api.read()
    await operator.make_missing()

    assert await signing_key(server).read() == first
    assert [method for method, _ in server.calls] == ["GET", "POST", "GET", "GET", "GET"]
    assert not KEY_SECRET.startswith(SECRET_PREFIX)


async def test_concurrently_created_key_is_kept() -> None:
    server = OneNamespace(races=True)
    operator, api = signing_key(server), signing_key(server)

    await operator.make_missing()

    assert (await api.read()).secret == base64.b64decode("b" * 43 + "=")


async def test_missing_namespace_is_transient() -> None:
    with pytest.raises(TransientError, match="does the namespace system exist"):
        await signing_key(OneNamespace(exists=False)).make_missing()


@pytest.mark.parametrize("secret", [None, {}, {"data": {}}, {"data": {KEY: "*"}}, secret_of("short"), secret_of("ä")])
async def test_missing_key_error_hides_the_details(secret: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = OneNamespace()
    if secret is not None:
        server.secrets[PATH] = secret

    with pytest.raises(TransientError) as raised:
        await signing_key(server).read()

    assert str(raised.value) == "user tokens cannot be verified at the moment"
    assert "cannot check user tokens: " in caplog.text
    assert "short" not in caplog.text
