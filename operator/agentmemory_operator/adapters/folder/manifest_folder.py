"""Folder of manifests that replaces Kubernetes in development: objects, statuses, Secrets, namespaces.

State that Kubernetes would store is kept in the subfolder `.status/`, so that a restart continues with it:
- `.status/*.json`: each object as last read, with uid, generation, creation time, finalizers and status.
- `.status/created/`: objects that the operator has created.
- `.status/annotations/`: annotations that commands have set on objects of other authors' manifests.

Git ignores the subfolder. While the process runs, a file that becomes unreadable keeps its last good content,
`spec.access` included: callers have no identities here (`entrypoints/api/identity/auth.py: build_guard`).
"""

import asyncio
import base64
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchfiles import awatch

from agentmemory_operator.adapters.folder.atomic_files import ensure_folder, ignore_in_git, write_file
from agentmemory_operator.adapters.folder.manifests import SUFFIXES, UnreadableManifest, find_line, read_manifests
from agentmemory_operator.connections.rules.host_lists import HOSTS_ANNOTATION, AnnotatedSecret
from agentmemory_operator.connections.rules.implied_connections import implied_connections
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.parse import is_own_group, kind_error
from agentmemory_operator.spec.times import render_second

log = logging.getLogger(__name__)

JOB_KINDS = ("MemorySnapshot", "MemoryRestore")
KINDS = ("AgentMemory", "QdrantConnection", *JOB_KINDS)
# File with the cluster id, for commands of another process.
CLUSTER_ID = "cluster-id"
ANNOTATIONS = "annotations"
NAME_LABEL = "kubernetes.io/metadata.name"
# Milliseconds to wait after a change: a manifest takes effect within a second, but is not read while partly written.
DEBOUNCE_MS, STEP_MS = 100, 25
# Names that fit into the name of a status file, which has at most 255 characters with kind and suffix.
FILE_NAMES = {"name": re.compile(r"[-._a-zA-Z0-9]{1,160}"), "namespace": re.compile(r"[-._a-zA-Z0-9]{1,63}")}
WATCH_EVENT = tuple[str, Json]
Name = tuple[str, str, str]


def raise_no_cluster_id() -> str:
    """Raise always: the default of `ManifestFolder` for code that needs no cluster id.

    Raises:
        TransientError: Always.
    """
    raise TransientError("this folder of manifests was opened without a cluster ID")


class ManifestFolder:
    """Implements ports.Cluster, ports.Namespaces and ports.SecretSource on a folder. Not safe for several processes.

    Args:
        folder: Folder with YAML or JSON manifests; subfolders are not read.
        keeps_status: True if `.status/` is read and written. False keeps state in memory only.
        implies_connections: True adds the QdrantConnections that AgentMemories refer to, if no manifest declares any.
        identify: Returns the cluster id; raises TransientError while it is unknown.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keeps_status: bool = True,
        implies_connections: bool = False,
        identify: Callable[[], str] = raise_no_cluster_id,
    ) -> None:
        self._folder = folder
        self._keeps_status = keeps_status
        self._implies_connections = implies_connections
        self._status_folder = folder / ".status"
        self._created_folder = self._status_folder / "created"
        self._annotations_folder = self._status_folder / ANNOTATIONS
        self._identify = identify
        self._files: dict[Path, list[Json]] = {}
        self._records: dict[Name, Json] = {}
        self._secrets: dict[tuple[str, str], Json] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._announced: set[Name] = set()
        self._created: dict[Name, Json] = {}
        self._caused: asyncio.Queue[WATCH_EVENT] = asyncio.Queue()

    async def cluster_id(self) -> str:
        """Return the cluster id, which is stored in the data folder instead of the folder of manifests.

        Raises:
            TransientError: If it is unknown.
        """
        return self._identify()

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Scan the folder, and return the current state of an object.

        Raises:
            NotFound: If it does not exist.
        """
        self._queue_changes()
        record = self._records.get((kind, namespace, name))
        if record is None:
            raise NotFound(f"there is no {kind} {namespace}/{name}")
        return record

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        """Replace the status of the object with this uid, if it exists. Return '', because files have no versions."""
        if record := self._find(kind, metadata):
            record["status"] = status
            self._save(record)
            self._caused.put_nowait(("MODIFIED", record))
        return ""

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the finalizers of the object with this uid. If it is being deleted, an empty list removes it."""
        record = self._find(kind, metadata)
        if record is None:
            return
        record["metadata"]["finalizers"] = list(finalizers)
        self._save(record)
        if record["metadata"].get("deletionTimestamp") and not finalizers:
            self._drop(name_of(record))
            self._caused.put_nowait(("DELETED", record))

    async def create_object(self, document: Json) -> bool:
        """Store an object, in `.status/created/` too if `keeps_status`; return False if it exists already."""
        name = name_of(document)
        if name in self._records or name in self._created:
            return False
        self._created[name] = document
        if self._keeps_status:
            ensure_folder(self._created_folder)
            _write(self._file(self._created_folder, name), document)
        self._queue_changes()
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object with this uid, if `create_object` has stored it.

        A manifest in the folder stays, because only its author deletes it.
        """
        name = (kind, metadata.namespace, metadata.name)
        if self._find(kind, metadata) is None or self._created.pop(name, None) is None:
            log.info("%s %s/%s is not deleted: its manifest is still in the folder, or it was created again", *name)
            return
        self._file(self._created_folder, name).unlink(missing_ok=True)
        self._queue_changes()

    def _find(self, kind: str, metadata: Metadata) -> Json | None:
        """Return the record of the object with this uid; None if it was deleted, or deleted and created again."""
        record = self._records.get((kind, metadata.namespace, metadata.name))
        return record if record and record["metadata"]["uid"] == metadata.uid else None

    def _queue_changes(self) -> None:
        """Scan, and queue the events: `.status/created/` is not watched."""
        for event in self.scan():
            self._caused.put_nowait(event)

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Log the event."""
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        log.log(level, "%s %s/%s: %s: %s", kind, metadata.namespace, metadata.name, event.reason, event.message)

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        """Return the Secret of a manifest with its decoded values, or None if there is none.

        Values of `data` are stripped of surrounding whitespace. Those that are not base64 of UTF-8 text are left out.
        """
        secret = self._secrets.get((namespace, name))
        if secret is None:
            return None
        values: dict[str, str] = {}
        for key, encoded in _part(secret, "data").items():
            with suppress(TypeError, ValueError):
                values[key] = base64.b64decode(encoded, validate=True).decode().strip()
        values |= {key: str(value) for key, value in _part(secret, "stringData").items()}
        return AnnotatedSecret(values, (secret["metadata"].get("annotations") or {}).get(HOSTS_ANNOTATION))

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a Namespace manifest, and the label that Kubernetes sets on each namespace."""
        return self._labels.get(namespace, {}) | {NAME_LABEL: namespace}

    async def follow(self) -> AsyncIterator[list[WATCH_EVENT]]:
        """Yield the existing objects as ADDED, then batches of changes, until cancelled.

        With stored records, the first batch also has objects whose manifests were removed while no process ran:
        DELETED, or MODIFIED with a `deletionTimestamp` if they have finalizers.
        """
        if self._keeps_status:
            ensure_folder(self._status_folder)
            ensure_folder(self._annotations_folder)
            ignore_in_git(self._status_folder)
            self._load_records()
            with suppress(TransientError):
                write_file(self._status_folder / CLUSTER_ID, self._identify())
        for path in sorted(self._folder.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                log.warning("%s is ignored: only manifests directly in %s are read", path, self._folder)
        yield self.scan()
        folders = [self._folder, *([self._annotations_folder] if self._keeps_status else [])]
        async for _ in awatch(*folders, recursive=False, debounce=DEBOUNCE_MS, step=STEP_MS):
            if events := self.scan():
                yield events

    async def next_caused_event(self) -> WATCH_EVENT:
        """Wait for the next event that this process has caused by creating, deleting or releasing an object."""
        return await self._caused.get()

    def scan(self) -> list[WATCH_EVENT]:
        """Read the folder; return the changes since the last scan: (ADDED|MODIFIED|DELETED, object)."""
        documents = [*self._created.values(), *self._documents()]
        if self._implies_connections:
            documents += [item for item in implied_connections(documents) if _is_object(item, self._folder)]
        self._secrets = {name_of(item)[1:]: item for item in documents if item["kind"] == "Secret"}
        self._labels = {item["metadata"]["name"]: _labels_of(item) for item in documents if item["kind"] == "Namespace"}
        manifests = {
            name_of(item): self._annotated(item) for item in documents if item["kind"] in KINDS and is_own_group(item)
        }
        updated = [self._update_record(item) for item in manifests.values()]
        removed = [self._delete_record(name) for name in list(self._records) if name not in manifests]
        return [event for event in updated + removed if event]

    def _annotated(self, document: Json) -> Json:
        """Merge the annotations that commands have set into a manifest. Annotations of the manifest take precedence."""
        path = self._file(self._annotations_folder, name_of(document))
        if not self._keeps_status or not path.is_file():
            return document
        declared = document["metadata"].get("annotations") or {}
        return document | {"metadata": document["metadata"] | {"annotations": read_annotations(path) | declared}}

    def _update_record(self, document: Json) -> WATCH_EVENT | None:
        """Update the record of a manifest; return its event, or None if nothing changed."""
        name = name_of(document)
        record = self._records.get(name)
        current = _merge(document, record)
        if current != record:
            self._records[name] = current
            self._save(current)
        elif name in self._announced:
            return None
        kind = "MODIFIED" if name in self._announced else "ADDED"
        self._announced.add(name)
        return kind, current

    def _delete_record(self, name: Name) -> WATCH_EVENT | None:
        """Delete the object of a removed manifest as Kubernetes would: wait for its finalizers."""
        record = self._records[name]
        metadata = record["metadata"]
        if not metadata.get("finalizers"):
            self._drop(name)
            return "DELETED", record
        if "deletionTimestamp" in metadata and name in self._announced:
            return None
        deleting = record | {"metadata": {"deletionTimestamp": _now()} | metadata}
        self._records[name] = deleting
        self._save(deleting)
        self._announced.add(name)
        return "MODIFIED", deleting

    def _drop(self, name: Name) -> None:
        del self._records[name]
        self._announced.discard(name)
        self._file(self._status_folder, name).unlink(missing_ok=True)
        self._file(self._annotations_folder, name).unlink(missing_ok=True)

    def _documents(self) -> Iterator[Json]:
        for path in sorted(self._folder.iterdir()):
            # Skip pipes and devices, because reading them might not end.
            if path.suffix not in SUFFIXES or path.name.startswith(".") or not path.is_file():
                continue
            try:
                self._files[path] = self._objects_of(path)
            except FileNotFoundError:
                self._files.pop(path, None)
            except (OSError, UnreadableManifest) as exc:
                log.error("cannot read %s, keeping its last content: %s", path.name, " ".join(str(exc).split()))
            yield from self._files.get(path, [])

    @staticmethod
    def _objects_of(path: Path) -> list[Json]:
        """Return the objects of a file.

        Raises:
            UnreadableManifest: If the file is unreadable, or has an object of a kind that the API server would reject.
                Without the error, a typo in the kind would delete the object.
        """
        manifests, invalid = read_manifests(path)
        for item in invalid:
            log.error("%s: a document is not a Kubernetes object: line %d: %s", path.name, item.line, item.error)
        objects = [manifest for manifest in manifests if _is_object(manifest.document, path)]
        for manifest in objects:
            if error := kind_error(manifest.document):
                raise UnreadableManifest(find_line(manifest.node, error.field), error)
        return [manifest.document for manifest in objects]

    def _load_records(self) -> None:
        for folder, loaded in ((self._status_folder, self._records), (self._created_folder, self._created)):
            for path in folder.glob("*.json"):
                record = json.loads(path.read_text(encoding="utf-8"))
                if _is_object(record, path):
                    loaded[name_of(record)] = record

    def _save(self, record: Json) -> None:
        if self._keeps_status:
            _write(self._file(self._status_folder, name_of(record)), record)

    @staticmethod
    def _file(folder: Path, name: Name) -> Path:
        kind, namespace, object_name = name
        return folder / f"{namespace}.{object_name}.{kind.lower()}.json"


def read_annotations(path: Path) -> dict[str, str]:
    """Return the annotations that commands have set on an object; empty if the file is missing or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        log.error("%s is ignored: it is not JSON", path)
        return {}
    return {key: value for key, value in stored.items() if isinstance(value, str)} if isinstance(stored, dict) else {}


def _write(path: Path, record: Json) -> None:
    write_file(path, json.dumps(record, indent=2) + "\n")


def _merge(document: Json, record: Json | None) -> Json:
    """Build the record of an object: the manifest with the state that Kubernetes would store."""
    kind, namespace, name = name_of(document)
    spec = document.get("spec")
    state: Json = {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now(), "finalizers": []}
    if record is not None:
        state = {key: record["metadata"][key] for key in state}
        if kind in JOB_KINDS and record["spec"] != spec:
            # Ignore the change, as the API server rejects it: a started job could not clean up by another spec.
            log.error("%s %s/%s: its spec is immutable, the change is ignored: create another", kind, namespace, name)
            spec = record["spec"]
        state["generation"] += record["spec"] != spec
    declared = {part: document["metadata"].get(part) or {} for part in ("labels", "annotations")}
    metadata = {"name": name, "namespace": namespace} | declared
    return {
        "apiVersion": document["apiVersion"],
        "kind": kind,
        "metadata": metadata | state,
        "spec": spec,
        "status": record["status"] if record else {},
    }


def name_of(document: Json) -> Name:
    """Return kind, namespace (`default` if the manifest has none) and name of an object."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace") or "default", metadata["name"]


def _labels_of(document: Json) -> dict[str, str]:
    labels = document["metadata"].get("labels")
    return {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}


def _part(document: Json, name: str) -> Json:
    part = document.get(name)
    return part if isinstance(part, dict) else {}


def _is_object(document: Any, path: Path) -> bool:
    if problem := _problem_of(document):
        log.error("%s: a document is not a Kubernetes object: %s", path.name, problem)
    return problem is None


def _problem_of(document: Any) -> str | None:
    """Return the reason why a document is no object, or None. Its spec is validated later, by reconciliation."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return "it needs apiVersion, kind and metadata.name"
    if not all(isinstance(document.get(part), str) and document[part] for part in ("apiVersion", "kind")):
        return "it needs apiVersion and kind"
    for part, value in (("name", metadata.get("name")), ("namespace", metadata.get("namespace") or "default")):
        if not isinstance(value, str) or not FILE_NAMES[part].fullmatch(value):
            return f"metadata.{part} {str(value)[:60]!r}: give {FILE_NAMES[part].pattern}"
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        return "metadata.annotations: values must be strings; put numbers in quotes"
    return None


def _now() -> str:
    return render_second(time.time())
