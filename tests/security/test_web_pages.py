"""Web pages of other sites, in a browser on the developer's machine, get nothing from `agentmemory dev`.

Headers that browsers write themselves (`Host`, `Origin`, `Sec-Fetch-*`) are sent as browsers do.
"""

import http.client
import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running

CONNECTION = {"kind": "QdrantConnection", "spec": {"url": "http://qdrant:6333"}, "metadata": {"name": "main"}}
AGENT = {
    "kind": "AgentMemory",
    "metadata": {"name": "probe"},
    "spec": {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}},
}
MEMORY = {"user_id": "u", "content": "planted", "vector": [1.0] * 8}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Served:
    """Addresses of `agentmemory dev`."""

    api: str
    qdrant: str

    def memories(self) -> list[str]:
        """Return the contents of the user's memories."""
        found = httpx.get(f"{self.api}/v1/agents/probe/memories", params={"user_id": "u"}).json()["results"]
        return [memory["content"] for memory in found]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "manifests").mkdir()
    documents = [{"apiVersion": "agentmemory.dev/v1alpha1"} | document for document in (CONNECTION, AGENT)]
    (folder / "manifests" / "all.yaml").write_text(yaml.safe_dump_all(documents))
    options = ("--manifests", str(folder / "manifests"), "--data", str(folder / "data"), "--port", "0")
    with running(Program(folder / "dev.log", *AGENTMEMORY, "dev", *options)) as program:
        made = Served(api=program.wait_for(r"API (http://\S+)")[1], qdrant=program.wait_for(r"Qdrant (http://\S+)")[1])
        agent_url = f"{made.api}/v1/agents/probe"
        wait_until(lambda: httpx.get(agent_url).status_code == 200, seconds=20, what="the agent")
        yield made


def send(
    url: str, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    """Send exactly these headers; return status and JSON."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    host = {"Host": urlsplit(url).netloc}
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    sent = host | headers | ({"Content-Length": str(len(body))} if body is not None else {})
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = "json" in answer.getheader("content-type", "")
    return answer.status, json.loads(content) if is_json else {}


def port_of(url: str) -> int:
    return int(urlsplit(url).port or 0)


FOREIGN: dict[str, dict[str, str]] = {
    "a form, or fetch without asking first": {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    "an old browser": {"Origin": "http://evil.example"},
    "a file, or a frame in a sandbox": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "another port of this machine": {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    "a script, a picture, a frame": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a name that leads here": {"Host": "evil.example:{port}"},
    "a name that leads here, and its page": {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"},
    "the address that stands for all": {"Host": "0.0.0.0:{port}", "Origin": "http://evil.example"},
}
MEDIA_TYPES = ["text/plain", "application/json", "application/x-ndjson", None]


def headers_of(case: str, url: str) -> dict[str, str]:
    return {name: value.format(port=port_of(url)) for name, value in FOREIGN[case].items()}


@pytest.mark.parametrize(("case", "media_type"), list(zip(FOREIGN, MEDIA_TYPES * 2, strict=True)))
def test_other_site_writes_nothing(served: Served, case: str, media_type: str | None) -> None:
    before = served.memories()
    headers = headers_of(case, served.api) | ({"Content-Type": media_type} if media_type else {})

    for path in ("memories", "import?user_id=u", "forget", "sessions/s/end?user_id=u"):
        status, problem = send(served.api, "POST", f"/v1/agents/probe/{path}", headers, json.dumps(MEMORY).encode())
        assert (status, problem["type"]) == (403, "/problems/cross-origin"), path

    assert served.memories() == before


@pytest.mark.parametrize("case", FOREIGN)
def test_other_site_reads_nothing(served: Served, case: str) -> None:
    for path in ("/v1/agents", "/v1/agents/probe/export?user_id=u", "/openapi.json", "/metrics", "/docs"):
        status, problem = send(served.api, "GET", path, headers_of(case, served.api))
        assert (status, problem["type"]) == (403, "/problems/cross-origin"), path


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/collections"), ("POST", "/collections/agent_memory_probe/points/scroll"), ("GET", "/telemetry")],
)
def test_other_site_cannot_reach_dev_qdrant(served: Served, case: str, method: str, path: str) -> None:
    status, answer = send(served.qdrant, method, path, headers_of(case, served.qdrant), b"{}")

    assert status == 403
    assert answer["status"]["error"].startswith("Forbidden: ")


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}])
def test_undeclared_json_is_rejected(served: Served, headers: dict[str, str]) -> None:
    status, problem = send(served.api, "POST", "/v1/agents/probe/memories", headers, json.dumps(MEMORY).encode())

    assert (status, problem["type"]) == (415, "/problems/unsupported-media-type")


def test_cors_preflight_is_rejected(served: Served) -> None:
    """No header of the response allows the request."""
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
    answer = httpx.options(f"{served.api}/v1/agents/probe/memories", headers=headers)

    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "agent.localhost", "LOCALHOST"])
def test_local_names_are_served(served: Served, name: str) -> None:
    host = f"{name}:{port_of(served.api)}"

    assert send(served.api, "GET", "/v1/agents", {"Host": host})[0] == 200
    assert send(served.qdrant, "GET", "/collections", {"Host": f"{name}:{port_of(served.qdrant)}"})[0] == 200


def test_tunnel_with_own_port_is_served(served: Served) -> None:
    headers = {"Host": "localhost:9999", "Origin": "http://localhost:9999", "Sec-Fetch-Site": "same-origin"}

    assert send(served.api, "GET", "/v1/agents", headers)[0] == 200


def test_own_docs_page_works(served: Served) -> None:
    """A browser opens `/docs` by address and by link, and loads its assets; the page's requests are served."""
    origin = f"http://localhost:{port_of(served.api)}"
    own = {"Host": f"localhost:{port_of(served.api)}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    typed = own | {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    followed = typed | {"Sec-Fetch-Site": "cross-site"}

    assert [send(served.api, "GET", "/docs", headers)[0] for headers in (typed, followed)] == [200, 200]
    assert send(served.api, "GET", "/docs", followed | {"Sec-Fetch-Dest": "iframe"})[0] == 403
    assert send(served.api, "GET", "/v1/agents", followed)[0] == 403, "an answer of the API is no page"
    loaded = [send(served.api, "GET", path, own)[0] for path in ("/openapi.json", "/docs/assets/swagger-ui.css")]
    assert loaded == [200, 200]
    memory = json.dumps(MEMORY | {"content": "by hand"}).encode()
    status, _ = send(served.api, "POST", "/v1/agents/probe/memories", own | JSON | {"Origin": origin}, memory)
    assert status == 201


def test_qdrant_client_works(served: Served) -> None:
    # Imported here: it costs each test process that collects this module a second.
    from qdrant_client import QdrantClient

    client = QdrantClient(url=served.qdrant, check_compatibility=False)

    assert client.collection_exists("agent_memory_probe")
    client.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "memory.corp"}, 200),
        ({"Host": "memory.corp", "Origin": "https://memory.corp", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "memory.corp", "Origin": "http://evil.example"}, 403),
        ({"Host": "memory.corp", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_open_api_rejects_other_sites(exposed: str, headers: dict[str, str], status: int) -> None:
    """Names of an address other than loopback are not known: see docs/http-api.md."""
    assert send(exposed, "GET", "/v1/agents", headers)[0] == status


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """API on every address without authentication."""
    yield from _files_api(
        tmp_path_factory.mktemp("exposed"), AGENTMEMORY_AUTH="none", AGENTMEMORY_AUTH_NONE_ACCEPTED="yes"
    )


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from _files_api(tmp_path_factory.mktemp("tokened"), AGENTMEMORY_AUTH="token", AGENTMEMORY_TOKEN="t0ken")


def _files_api(folder: pathlib.Path, **environment: str) -> Iterator[str]:
    (folder / "manifests").mkdir()
    options = ("--source", "files", "--manifests", str(folder / "manifests"), "--port", "0", "--host", "0.0.0.0")
    with running(Program(folder / "api.log", *AGENTMEMORY, "api", *options, **environment)) as program:
        yield program.wait_for(r"API (http://\S+)")[1].replace("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize("case", FOREIGN)
def test_token_is_required_from_any_site(tokened: str, case: str) -> None:
    """A page that sends the token itself is served; browsers do not add the token to the requests of other pages."""
    headers = headers_of(case, tokened)

    assert send(tokened, "GET", "/v1/agents", headers)[0] == 401
    assert send(tokened, "GET", "/v1/agents", headers | {"Authorization": "Bearer t0ken"})[0] == 200
