"""Operator, API and their environment with canaries. The traces of a run are collected as evidence, by place."""

import base64
import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentmemory_operator.ports.objects import AccessKey
from tests.support.cluster.canaries.canaries import Canaries, Leak
from tests.support.cluster.canaries.conversation import Conversation
from tests.support.cluster.canaries.echoes import EchoingEmbedder, EchoingProxy
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import KEY_REF, QDRANT_KEY, Caller, Platform, Tenant, create_secret, running_platform
from tests.support.cluster.workspace import PLURALS, Workspace
from tests.support.spec.documents import Document
from tests.support.web.http_server import serve
from tests.support.web.s3_server import BUCKET, S3Server, serve_s3
from tests.support.web.services import Collector

SIZE = 8
KINDS = tuple(f"/apis/agentmemory.dev/v1alpha1/{plural}" for plural in PLURALS.values())
OTHERS = ("/api/v1/configmaps", "/apis/coordination.k8s.io/v1/leases", "/api/v1/secrets")
PLACES = (
    *("the operator's log", "the API's log", "the log of the development Qdrant", "objects", "events", "other objects"),
    *("the operator's metrics", "the API's metrics", "the traces", "names in the bucket"),
)
# Invalid keys, as formats that are applied to a valid key.
BAD_KEYS = {"wrong": "{}", "broken": "{}\nsecond line", "foreign": "{}é"}


@dataclass(slots=True, kw_only=True)
class Scene:
    """Participants of the run.

    Attributes:
        evidence: Texts that the run left, by place.
    """

    canaries: Canaries
    platform: Platform
    infra: Workspace
    alpha: Tenant
    beta: Tenant
    embedder: EchoingEmbedder
    embedder_url: str
    proxy: EchoingProxy
    storage: S3Server
    conversations: list[Conversation] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Number of error responses of the API."""
        return sum(conversation.errors for conversation in self.conversations)

    @property
    def leaks_in_errors(self) -> list[Leak]:
        """Leaks in the error responses of the API."""
        return [leak for conversation in self.conversations for leak in conversation.leaks]

    def leaks_in(self, place: str) -> list[Leak]:
        return self.canaries.find_leaks(self.evidence[place], place)

    def conversation(self, caller: Caller) -> Conversation:
        """Open a conversation of a caller, with paths from the API's root."""
        head = {"Authorization": caller.http.headers["Authorization"]}
        made = Conversation(self.canaries, httpx.Client(base_url=self.platform.api_url, headers=head, timeout=30))
        self.conversations.append(made)
        return made

    def secret(self, workspace: Workspace, name: str, **values: str) -> None:
        """Create a Secret with canaries as values."""
        for key, value in values.items():
            self.canaries.plant(f"{name}/{key}", value)
        create_secret(workspace, name, **values)

    def claim(self, suffix: str = "", **spec: Any) -> str:
        """Apply an agent of alpha with `suffix` at the end of its slug; return the slug."""
        slug = f"{self.alpha.namespace}{suffix and '-'}{suffix}"
        self.alpha.claim(self.infra, slug, name=suffix or "memory", **spec)
        return slug

    def embedding(self, secret: str, **more: Any) -> Document:
        """Build an embedding spec for the service, with a key from alpha's Secret."""
        ref, url = {"name": secret, "key": "key"}, f"{self.embedder_url}/v1"
        spec = {"provider": "openai", "model": "m", "dimensions": SIZE, "baseURL": url, "secretRef": ref}
        return spec | {"timeoutSeconds": 1} | more

    def s3(self, secret: str) -> Document:
        """Build the target of snapshot copies, with a key from alpha's Secret."""
        return {"endpoint": self.storage.url, "bucket": BUCKET, "secretRef": {"name": secret}}

    def plant_agent_secrets(self) -> None:
        """Plant the tokens for Qdrant and all other values in the API's Secrets."""
        found = self.platform.control_plane.http.get(f"/api/v1/namespaces/{NAMESPACE}/secrets").json()["items"]
        for secret in found:
            for slot, value in (secret.get("data") or {}).items():
                decoded = base64.b64decode(value).decode()
                # Only the signature is unique: all tokens start in the same way.
                self.canaries.plant(f"{secret['metadata']['name']}/{slot}", decoded.rpartition(".")[2])


@contextlib.contextmanager
def running_scene(
    control_plane: ControlPlane, folder: pathlib.Path, perform: Callable[[Scene], None]
) -> Iterator[Scene]:
    """Set up the scene with JSON logs at level debug, run `perform`, collect the evidence, and yield the scene."""
    canaries = Canaries()
    collector, embedder = Collector(), EchoingEmbedder(SIZE)
    key = AccessKey(canaries.secret("id of the storage's key"), canaries.secret("key of the storage"))
    with (
        serve(collector.app()) as collector_url,
        serve_s3(folder / "s3", key=key) as storage,
        serve(embedder.app()) as embedder_url,
    ):
        more = {
            "AGENTMEMORY_LOG_LEVEL": "debug",
            "AGENTMEMORY_REBUILDS_AT_ONCE": "4",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with running_platform(control_plane, folder, more=more) as platform:
            proxy = EchoingProxy(platform.qdrant_url)
            with serve(proxy.app()) as proxy.url:
                scene = Scene(
                    canaries=canaries,
                    platform=platform,
                    infra=Workspace(control_plane, control_plane.create_namespace("infra-"), platform.qdrant_url),
                    alpha=Tenant.create(platform, "alpha"),
                    beta=Tenant.create(platform, "beta"),
                    embedder=embedder,
                    embedder_url=embedder_url,
                    proxy=proxy,
                    storage=storage,
                )
                create_fixtures(scene)
                perform(scene)
                scene.plant_agent_secrets()
                scene.evidence |= evidence_of_metrics(platform) | evidence_of_cluster(scene)
                platform.operator.stop()
                platform.api.stop()
                scene.evidence |= evidence_of_logs(platform)
                scene.evidence["the traces"] = b"\n".join(collector.bodies).decode(errors="replace")
                scene.evidence["names in the bucket"] = "\n".join(str(path) for path in storage.folder.rglob("*"))
                yield scene
                clean_up(scene)


def create_fixtures(scene: Scene) -> None:
    """Create the connection and the Secrets."""
    alpha, infra, canaries, key = scene.alpha, scene.infra, scene.canaries, scene.storage.key
    scene.secret(infra, KEY_REF["name"], **{KEY_REF["key"]: QDRANT_KEY})
    infra.qdrant.headers["api-key"] = QDRANT_KEY
    infra.connect(url=scene.proxy.url, apiKeySecretRef=KEY_REF, namespaces={"from": "All"}, timeoutSeconds=2)
    scene.secret(alpha.admin_workspace, "embedder", key=canaries.secret("key of the embedding service"))
    scene.secret(alpha.admin_workspace, "s3", **{"access-key-id": key.id, "secret-access-key": key.secret})


def clean_up(scene: Scene) -> None:
    """Close the clients and remove the objects."""
    for conversation in scene.conversations:
        conversation.http.close()
    scene.alpha.close()
    scene.beta.close()
    scene.infra.clean()


def evidence_of_metrics(platform: Platform) -> dict[str, str]:
    return {
        "the operator's metrics": httpx.get(f"{platform.operator_url}/metrics").text,
        "the API's metrics": httpx.get(f"{platform.api_url}/metrics").text,
    }


def evidence_of_logs(platform: Platform) -> dict[str, str]:
    return {
        "the operator's log": platform.operator.log,
        "the API's log": platform.api.log,
        "the log of the development Qdrant": platform.qdrant.log,
    }


def evidence_of_cluster(scene: Scene) -> dict[str, str]:
    """Return the cluster's objects and events as JSON, without the specs and data that users wrote."""
    http = scene.platform.control_plane.http
    namespaces = {scene.infra.namespace, scene.alpha.namespace, scene.beta.namespace, NAMESPACE}

    def told_by(*paths: str) -> str:
        found = (item for path in paths for item in http.get(path).json()["items"])
        ours = [item for item in found if item["metadata"]["namespace"] in namespaces]
        kept = [{name: part for name, part in item.items() if name not in ("spec", "data")} for item in ours]
        return "\n".join(json.dumps(item) for item in kept)

    return {"objects": told_by(*KINDS), "events": told_by("/api/v1/events"), "other objects": told_by(*OTHERS)}
