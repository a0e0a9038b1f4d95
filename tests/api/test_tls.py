"""`agentmemory api` with a certificate: https, renewed files, invalid files, and handshakes that never end."""

import os
import pathlib
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from agentmemory_operator.adapters.http import asgi_server
from tests.api.test_connections import PATIENCE_S, Server, read_to_end
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import CLUSTER_ID, agent_document
from tests.support.web.http_server import HOST, Authority, ServerFiles


class MountedSecret:
    """The files of a Secret as the kubelet mounts them: a link to a folder, which it replaces in one step."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._count = 0

    def store(self, certificate: str, key: str) -> tuple[str, ...]:
        """Replace both files; return the options that name them."""
        self._count += 1
        version = self._folder / f"..{self._count}"
        version.mkdir()
        (version / "tls.crt").write_text(certificate)
        (version / "tls.key").write_text(key)
        (self._folder / "..new").symlink_to(version.name)
        os.replace(self._folder / "..new", self._folder / "..data")
        return (
            "--tls-cert",
            str(self._folder / "..data" / "tls.crt"),
            "--tls-key",
            str(self._folder / "..data" / "tls.key"),
        )


def contents(files: ServerFiles) -> tuple[str, str]:
    return files.certificate.read_text(), files.key.read_text()


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> MountedSecret:
    folder = tmp_path / "secret"
    folder.mkdir()
    return MountedSecret(folder)


def program(folder: pathlib.Path, *options: str) -> Program:
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump(agent_document("plain")))
    files = ("--source", "files", "--manifests", str(manifests), "--port", "0")
    return Program(folder / "api.log", *AGENTMEMORY, "api", *files, *options, AGENTMEMORY_CLUSTER_ID=CLUSTER_ID)


@pytest.fixture
def serving(tmp_path: pathlib.Path, authority: Authority, secret: MountedSecret) -> Iterator[Program]:
    with running(program(tmp_path, *secret.store(*contents(authority.issue())))) as started:
        yield started


def issuer_of(url: str) -> bytes:
    """Return the certificate that a new connection gets."""
    place = urlsplit(url)
    return ssl.get_server_certificate((str(place.hostname), place.port or 443)).encode()


def test_api_serves_https_only(serving: Program, authority: Authority) -> None:
    url = serving.wait_for(r"API (https://\S+)")[1]

    with httpx.Client(verify=ssl.create_default_context(cadata=authority.pem)) as client:
        assert client.get(f"{url}/healthz").status_code == 200
        # The API accepts its own origin, and refuses the same host with the scheme http.
        assert client.get(f"{url}/v1/agents", headers={"Origin": url}).status_code == 200
        assert client.get(f"{url}/v1/agents", headers={"Origin": url.replace("https", "http")}).status_code == 403
    with pytest.raises(httpx.TransportError):
        httpx.get(url.replace("https", "http") + "/healthz")


def test_renewed_certificate_is_served_without_a_restart(
    serving: Program, authority: Authority, secret: MountedSecret
) -> None:
    url = serving.wait_for(r"API (https://\S+)")[1]
    first = issuer_of(url)

    with httpx.Client(verify=ssl.create_default_context(cadata=authority.pem)) as client:
        assert client.get(f"{url}/healthz").status_code == 200
        secret.store(*contents(authority.issue()))
        wait_until(lambda: issuer_of(url) != first, seconds=20, what="the renewed certificate")
        # The connection from before stays open.
        assert client.get(f"{url}/healthz").status_code == 200
    serving.wait_for("read a new certificate")


@pytest.mark.parametrize("fault", ["key of another certificate", "no PEM"])
def test_invalid_renewal_keeps_the_certificate(
    serving: Program, authority: Authority, secret: MountedSecret, fault: str
) -> None:
    url = serving.wait_for(r"API (https://\S+)")[1]
    first = issuer_of(url)
    certificate, key = contents(authority.issue())

    secret.store(certificate, contents(authority.issue())[1] if fault != "no PEM" else "-")
    serving.wait_for("kept the certificate read before")
    assert issuer_of(url) == first

    secret.store(certificate, key)
    wait_until(lambda: issuer_of(url) != first, seconds=20, what="the corrected certificate")


@pytest.mark.parametrize("fault", ["missing", "no PEM", "other key", "one option"])
def test_invalid_files_stop_the_start(
    tmp_path: pathlib.Path, authority: Authority, secret: MountedSecret, fault: str
) -> None:
    certificate, key = contents(authority.issue())
    other = contents(authority.issue())[1]
    options = secret.store(certificate, {"no PEM": "-", "other key": other}.get(fault, key))
    if fault == "missing":
        options = ("--tls-cert", "/nonexistent/tls.crt", "--tls-key", "/nonexistent/tls.key")
    with running(program(tmp_path, *(options[:2] if fault == "one option" else options))) as started:
        wait_until(lambda: started.returncode is not None, seconds=30, what="its end")

        assert started.returncode == (2 if fault == "one option" else 1)
    assert {
        "missing": "--tls-cert /nonexistent/tls.crt, --tls-key /nonexistent/tls.key: No such file or directory",
        "no PEM": "not a PEM certificate with its key",
        "other key": "not a PEM certificate with its key (KEY_VALUES_MISMATCH)",
        "one option": "--tls-cert and --tls-key need each other",
    }[fault] in " ".join(started.log.split())


def test_unfinished_handshake_is_closed(
    authority: Authority, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi_server, "MAX_HEAD_S", 0.5)
    with Server(authority.issue()) as server, socket.create_connection((HOST, urlsplit(server.url).port)) as silent:
        silent.settimeout(PATIENCE_S)

        assert read_to_end(silent) == b""
