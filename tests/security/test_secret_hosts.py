"""A tenant that cannot read a Secret cannot have it sent to a host of its own.

The platform has created a Secret in the tenant's namespace for its own Qdrant, service and storage. The tenant refers
to it with a listener of its own as server, node, embedding service or storage: at once, or after the API has the value;
by specs, by a status, by metadata of its own Qdrant.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.connections.rules.host_lists import HOSTS_ANNOTATION
from tests.support.cluster.tenants import QDRANT_KEY, Platform, Rights, Tenant, create_secret, read_agent_secret
from tests.support.cluster.workspace import AGENT, MERGE, Workspace, conditions_of
from tests.support.forked import run_agentmemory
from tests.support.patience import wait_until
from tests.support.programs import clean_environment
from tests.support.spec.documents import Document
from tests.support.web.http_server import serve
from tests.support.web.s3_server import BUCKET

SECRET, MODEL_KEY = "platform", "sk-of-the-platform"
API_KEY, OPENAI = {"name": SECRET, "key": "api-key"}, {"name": SECRET, "key": "openai"}
VALUES = {
    "api-key": QDRANT_KEY,
    "openai": MODEL_KEY,
    "access-key-id": "AKIDOFTHEPLATFORM",
    "secret-access-key": "secret-of-the-platform",
    "session-token": "session-of-the-platform",
}
SHOWN = ("api-key", "authorization", "x-amz-security-token")
# Sent by the client of a service without a key.
NO_KEY = "Bearer none"
SIZE = 8
PASSES = 6
NOT_USABLE = "True/SecretNotUsable"


@dataclass(slots=True)
class Listener:
    """Server that records requests; it responds with 404, or as an embedding service."""

    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def app(self) -> Starlette:
        methods = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD"]
        return Starlette(routes=[Route("/{path:path}", self._take, methods=methods)])

    @property
    def keys(self) -> set[str]:
        """Credentials that it has received."""
        shown = {head.get(name, "") for _, head in self.requests for name in SHOWN}
        return shown - {"", NO_KEY}

    async def _take(self, request: Request) -> Response:
        self.requests.append((f"{request.method} {request.url.path}", dict(request.headers)))
        body = await request.body()
        if request.url.path.endswith("/embeddings") and body:
            rows = [{"object": "embedding", "index": n, "embedding": [1.0] * SIZE} for n, _ in enumerate(_texts(body))]
            return JSONResponse({"object": "list", "data": rows, "model": "m"})
        return JSONResponse({"status": {"error": "no"}}, 404)


def _texts(body: bytes) -> list[Any]:
    return list(json.loads(body)["input"])


@pytest.fixture
def rights() -> Rights:
    """Rights on connections and statuses too."""
    return "everything"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    with serve(made.app()) as url:
        made.url = url
        yield made


@pytest.fixture
def secret(alpha: Tenant, platform: Platform) -> str:
    """The platform's Secret, for its own Qdrant only; the tenant cannot read it."""
    create_secret(alpha.admin_workspace, SECRET, hosts=platform.qdrant_url.removeprefix("http://"), **VALUES)
    assert alpha.http.get(f"/api/v1/namespaces/{alpha.namespace}/secrets/{SECRET}").status_code == 403
    return SECRET


def is_refused(tenant: Tenant, name: str = AGENT, kind: str = "AgentMemory") -> bool:
    """Return whether the object reports that the Secret may not be sent there."""
    found = tenant.admin_workspace.get(name, kind) or {}
    return any(value.endswith("/SecretNotUsable") for value in conditions_of(found).values())


def assert_refused_and_not_sent(
    listener: Listener,
    refused: Callable[[], bool],
    *,
    action: Callable[[], object] = lambda: None,
    seconds: int = 30,
) -> None:
    """Wait for a refusal, and check that no credential was sent."""

    def is_decided() -> bool:
        action()
        return bool(listener.keys) or refused()

    wait_until(is_decided, seconds=seconds, what="a refusal")
    for _ in range(5):
        action()
        time.sleep(0.1)
    assert listener.keys == set()


def openai_at(url: str) -> Document:
    return {"provider": "openai", "model": "m", "dimensions": SIZE, "baseURL": f"{url}/v1", "secretRef": OPENAI}


def s3_at(url: str, **more: Any) -> Document:
    return {"endpoint": url, "bucket": BUCKET, "secretRef": {"name": SECRET}} | more


@pytest.mark.usefixtures("secret")
class TestConnection:
    def test_foreign_server_gets_no_key(self, alpha: Tenant, listener: Listener) -> None:
        alpha.apply("QdrantConnection", "mine", {"url": listener.url, "apiKeySecretRef": API_KEY})

        assert_refused_and_not_sent(listener, lambda: is_refused(alpha, "mine", "QdrantConnection"))

        message = alpha.wait_condition("Stalled", NOT_USABLE, name="mine", of="QdrantConnection")["message"]
        assert f"kubectl -n {alpha.namespace} annotate secret {SECRET}" in message
        assert listener.requests == []

    def test_url_changed_later_gets_no_key(
        self, alpha: Tenant, listener: Listener, platform: Platform, slug: str, infra: Workspace
    ) -> None:
        alpha.apply("QdrantConnection", "mine", {"url": platform.qdrant_url, "apiKeySecretRef": API_KEY})
        alpha.create_served(infra, slug, "one", connectionRef={"name": "mine"})

        alpha.apply("QdrantConnection", "mine", {"url": listener.url, "apiKeySecretRef": API_KEY})

        refused = lambda: is_refused(alpha, "mine", "QdrantConnection")  # noqa: E731 - it reads as an argument
        assert_refused_and_not_sent(listener, refused, action=lambda: alpha.bot.search(slug))
        assert listener.requests == []


@pytest.mark.usefixtures("secret")
class TestEmbedding:
    def test_foreign_service_gets_no_key(self, alpha: Tenant, listener: Listener, slug: str, infra: Workspace) -> None:
        alpha.claim(infra, slug, embedding=openai_at(listener.url))

        assert_refused_and_not_sent(listener, lambda: is_refused(alpha), action=lambda: ask(alpha, slug))
        message = alpha.wait_condition("Stalled", NOT_USABLE)["message"]
        assert listener.url.removeprefix("http://") in message

    def test_forged_status_and_marker_get_no_key(
        self, alpha: Tenant, listener: Listener, slug: str, infra: Workspace, qdrant_url: str
    ) -> None:
        """The status names the Secret of the active embedding, and the collection names its host."""
        alpha.apply("QdrantConnection", "mine", {"url": qdrant_url})
        alpha.claim(infra, slug, connectionRef={"name": "mine"}, embedding={"provider": "wordllama", "dimensions": 64})
        alpha.wait_ready()

        mark(qdrant_url, slug, {"provider": "openai", "model": "m", "dimensions": 64, "baseUrl": f"{listener.url}/v1"})
        for _ in range(PASSES):
            alpha.patch_status("AgentMemory", AGENT, {"effective": {"embedding": {"secret": f"{SECRET}/openai"}}})
            alpha.admin_workspace.run_pass()
            assert handed_values(alpha.platform, slug).isdisjoint(VALUES.values())
            ask(alpha, slug)

        assert listener.keys == set()


@pytest.mark.usefixtures("secret")
class TestStorage:
    def test_foreign_storage_gets_no_key(self, alpha: Tenant, listener: Listener, slug: str, infra: Workspace) -> None:
        alpha.create_served(infra, slug, "one", snapshots={"storage": {"s3": s3_at(listener.url)}})

        alpha.apply("MemorySnapshot", "s", {"agentMemoryRef": {"name": AGENT}, "verify": "None"})

        assert_refused_and_not_sent(listener, lambda: is_refused(alpha, "s", "MemorySnapshot"))


def test_message_reveals_nothing_of_the_secret(alpha: Tenant, listener: Listener, secret: str) -> None:
    """The message contains neither keys nor allowed hosts of the Secret: the command reads them itself."""
    list_hosts(alpha, "vault.internal.example")
    for name, key in (("one", "api-key"), ("two", "no-such-key")):
        ref = {"name": secret, "key": key}
        alpha.apply("QdrantConnection", name, {"url": listener.url, "apiKeySecretRef": ref})

    message = {
        alpha.wait_condition("Stalled", NOT_USABLE, name=name, of="QdrantConnection")["message"]
        for name in ("one", "two")
    }

    (message,) = message
    assert "internal" not in message
    assert not any(value in message for value in VALUES.values())


class TestCommands:
    """Commands read Secrets with the rights of their user, and check the Secret's hosts if that is required."""

    @pytest.mark.parametrize("verb", ["orphans", "cleanup"])
    @pytest.mark.parametrize("is_typed", [False, True], ids=["the object's URL", "a URL that is typed"])
    def test_key_is_sent_only_to_typed_url(
        self, alpha: Tenant, listener: Listener, secret: str, slug: str, infra: Workspace, verb: str, *, is_typed: bool
    ) -> None:
        alpha.apply("QdrantConnection", "mine", {"url": listener.url, "apiKeySecretRef": API_KEY})
        alpha.claim(infra, slug, connectionRef={"name": "mine"})
        named = {
            "orphans": ["--connection", f"{alpha.namespace}/mine"],
            "cleanup": [AGENT, "--dry-run", "-n", alpha.namespace],
        }
        typed = ["--qdrant", listener.url] if is_typed else []
        environment = {
            "KUBECONFIG": str(alpha.platform.control_plane.kubeconfig),
            "AGENTMEMORY_SECRET_HOSTS": "Require",
        }

        done = run_agentmemory(verb, *named[verb], *typed, env=clean_environment() | environment)

        assert done.returncode != 0
        assert listener.keys == ({QDRANT_KEY} if is_typed else set())
        assert ("annotate secret" in " ".join((done.stdout + done.stderr).split())) is not is_typed


def ask(tenant: Tenant, slug: str) -> int:
    """Search by text, which has to be embedded; return the status."""
    return tenant.bot.http.post(f"{slug}/search", json={"user_id": "u", "query": "the printer"}).status_code


def list_hosts(tenant: Tenant, hosts: str) -> None:
    """Add hosts to the Secret's list, like its owner."""
    path = f"/api/v1/namespaces/{tenant.namespace}/secrets/{SECRET}"
    kubernetes = tenant.platform.control_plane.http
    listed = kubernetes.get(path).json()["metadata"]["annotations"][HOSTS_ANNOTATION]
    body = {"metadata": {"annotations": {HOSTS_ANNOTATION: f"{listed}, {hosts}"}}}
    kubernetes.patch(path, json=body, headers=MERGE).raise_for_status()


def handed_values(platform: Platform, slug: str) -> set[str]:
    """Return all values that the API was given for an agent."""
    answer = read_agent_secret(platform, slug)
    if answer.status_code == 404:
        return set()
    return {base64.b64decode(value).decode() for value in answer.json().get("data", {}).values()}


def mark(url: str, slug: str, embedding: Document) -> None:
    """Change the embedding in a collection's metadata, as the operator of its server can."""
    with httpx.Client(base_url=url, timeout=30) as qdrant:
        physical = f"agent_memory_{slug}__1"
        marker = qdrant.get(f"/collections/{physical}").json()["result"]["config"]["metadata"]["agentmemory"]
        embedding = embedding | {"secretName": SECRET, "secretKey": "openai"}
        body = {"metadata": {"agentmemory": marker | {"embedding": embedding}}}
        qdrant.patch(f"/collections/{physical}", json=body).raise_for_status()
