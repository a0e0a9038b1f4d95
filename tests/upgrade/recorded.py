"""Data of a released version: objects, collections, backups and responses, as small files under `recorded/`."""

import base64
import json
import lzma
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import PLURALS
from tests.support.web.http_server import check_success

Json = dict[str, Any]
FOLDER = pathlib.Path(__file__).parent / "recorded"
NAMESPACE = "recorded"
API = "/apis/agentmemory.dev/v1alpha1"
# Kinds in the order in which they are applied.
KINDS = ("QdrantConnection", "AgentMemory", "MemorySnapshot")
# Placeholders of the servers' addresses.
QDRANT, STORAGE = "http://qdrant.recorded:6333", "http://s3.recorded:7070"


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording of one version.

    Attributes:
        cluster: Cluster id in its markers.
        objects: Objects of the API server, with status.
        collections: By physical name: Qdrant's description, the points with vectors, and the alias.
        asked: Requests to the API, with their responses.
        backup: Files under the S3 server's folder by path: bytes and attributes, which contain the metadata of S3
        objects.
        exported: The API's export of the agent `brain`, user ada.
    """

    version: str
    cluster: str
    objects: list[Json]
    collections: dict[str, Json]
    asked: list[Json]
    backup: dict[str, Json]
    exported: str

    def save(self, folder: pathlib.Path = FOLDER) -> None:
        """Write one file, deterministic for the same content."""
        folder.mkdir(exist_ok=True)
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        (folder / f"{self.version}.json.xz").write_bytes(lzma.compress(text))

    def put_backup(self, folder: pathlib.Path) -> None:
        """Write the bucket's files into the folder of an S3 server."""
        for name, kept in self.backup.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kept["bytes"] is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(base64.b64decode(kept["bytes"]))
            for attribute, value in kept["attributes"].items():
                os.setxattr(path, attribute, base64.b64decode(value))

    def put_collections(self, qdrant: httpx.Client) -> None:
        """Create the collections with their settings, indexes, points and aliases."""
        for name, kept in self.collections.items():
            config = kept["config"]
            body = {
                **{key: value for key, value in config["params"].items() if value is not None},
                "hnsw_config": config["hnsw_config"],
                "optimizers_config": {key: one for key, one in config["optimizer_config"].items() if one is not None},
                "quantization_config": config.get("quantization_config"),
                "strict_mode_config": config.get("strict_mode_config"),
                "metadata": config["metadata"],
            }
            check_success(
                qdrant.put(f"/collections/{name}", json={key: one for key, one in body.items() if one is not None})
            )
            for field, index in kept["payload_schema"].items():
                index_request = {"field_name": field, "field_schema": index.get("params") or index["data_type"]}
                check_success(qdrant.put(f"/collections/{name}/index", params={"wait": "true"}, json=index_request))
            if kept["points"]:
                path = f"/collections/{name}/points"
                check_success(qdrant.put(path, params={"wait": "true"}, json={"points": kept["points"]}))
            if kept["alias"]:
                action = {"create_alias": {"collection_name": name, "alias_name": kept["alias"]}}
                check_success(qdrant.post("/collections/aliases", json={"actions": [action]}))

    def put_objects(self, control_plane: ControlPlane, *, qdrant: str, storage: str) -> None:
        """Apply the objects and their status, as docs/install.md does with a catalogue."""
        control_plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
        keys = {"metadata": {"name": "s3"}, "stringData": S3_SECRET}
        control_plane.http.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", json=keys)
        for document in self.objects:
            text = json.dumps(document).replace(QDRANT, qdrant).replace(STORAGE, storage)
            found = json.loads(text)
            path = f"{API}/namespaces/{NAMESPACE}/{PLURALS[found['kind']]}"
            made = check_success(control_plane.http.post(path, json=found)).json()
            made["status"] = found.get("status", {})
            check_success(control_plane.http.put(f"{path}/{made['metadata']['name']}/status", json=made))


S3_SECRET = {"access-key-id": "test-access-key", "secret-access-key": "test-secret-key"}


def load(version: str) -> Recording:
    """Read the recording of a version."""
    return Recording(**json.loads(lzma.decompress((FOLDER / f"{version}.json.xz").read_bytes())))


def versions() -> list[str]:
    """Return the recorded versions."""
    return sorted(path.name.removesuffix(".json.xz") for path in FOLDER.glob("*.json.xz"))


def stable_part(answer: httpx.Response) -> Any:
    """Return the part of a response that must not change: ids and contents, without scores and access counts."""
    if not answer.is_success:
        return answer.status_code
    body = answer.json() if answer.content else None
    rows = body.get("results", [body]) if isinstance(body, Mapping) else []
    return sorted(json.dumps(list(_kept(row))) for row in rows if isinstance(row, Mapping))


def _kept(row: Mapping[str, Any]) -> Iterator[Any]:
    for field in (
        "id",
        "user_id",
        "content",
        "type",
        "key",
        "subject",
        "supersedes",
        "superseded_by",
        "tags",
        "metadata",
    ):
        yield row.get(field)


def ask(api: httpx.Client, request: Mapping[str, Any]) -> Any:
    """Send a recorded request; return the part of the response that must not change."""
    return stable_part(
        api.request(**{key: request[key] for key in ("method", "url", "params", "json") if key in request})
    )
