"""Access of commands to the folder of manifests that `agentmemory dev` watches in another process."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from agentmemory_operator.adapters.folder.atomic_files import ensure_folder, write_file
from agentmemory_operator.adapters.folder.manifest_folder import (
    ANNOTATIONS,
    CLUSTER_ID,
    ManifestFolder,
    Name,
    name_of,
    read_annotations,
)
from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret
from agentmemory_operator.errors import AgentMemoryError, NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kubectl_yaml import KubectlLoader, dump_yaml


class ManifestFiles:
    """Implements ports.JobObjects.

    A command writes each object that it creates to a file of its own. Commands can change and delete such a file.

    Manifests of other authors are never changed: annotations on their objects are stored in `.status/annotations/`.

    Args:
        folder: Folder of manifests; statuses are read from its subfolder `.status`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def cluster_id(self) -> str:
        """Return the cluster id that the development stack has written to the folder.

        Raises:
            TransientError: If it has not been written yet.
        """
        try:
            return (self._folder / ".status" / CLUSTER_ID).read_text("utf-8")
        except FileNotFoundError as exc:
            raise TransientError(f"{self._folder} has no cluster ID: start `agentmemory dev` on it") from exc

    @property
    def default_namespace(self) -> str:
        """Namespace of the AgentMemories if all have the same one, else `default`."""
        namespaces = {namespace for kind, namespace, _ in self._objects() if kind == "AgentMemory"}
        return namespaces.pop() if len(namespaces) == 1 else "default"

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object. It has a status only if the development stack has read its manifest already.

        Raises:
            NotFound: If there is no such object.
        """
        document = self._objects().get((kind, namespace, name))
        if document is None:
            raise NotFound(f"there is no {kind} {namespace}/{name} in {self._folder}")
        return document

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return all objects of a kind, and "" as the version of the list, because files have no version."""
        return await self.list_in(kind, ""), ""

    async def event_times(self, _: str) -> dict[tuple[str, str], str]:
        """Return an empty dict: the development stack only logs events."""
        return {}

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in one namespace; an empty name means all namespaces."""
        namespaces = (namespace,) if namespace else {name[1] for name in self._objects()}
        return [document for name, document in self._objects().items() if name[0] == kind and name[1] in namespaces]

    async def create_object(self, document: Json) -> bool:
        """Write a manifest for a new object; return False if the object exists already."""
        metadata = document["metadata"]
        name = (document["kind"], metadata["namespace"], metadata["name"])
        if name in self._objects():
            return False
        self._write(self._own_file(name), document)
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the manifest of an object that a command has created.

        Raises:
            AgentMemoryError: If no command has created it, or another object has the name now.
        """
        name = (kind, metadata.namespace, metadata.name)
        path = self._require_own_file(name, "delete it there")
        # Compare the uid only if the development stack has stored it: otherwise it changes with each read.
        uids = [item["metadata"]["uid"] for item in _documents_in(self._folder / ".status") if name_of(item) == name]
        if metadata.uid and uids not in ([], [metadata.uid]):
            raise AgentMemoryError(f"{kind} {metadata.namespace}/{metadata.name} was created again: it is not deleted")
        path.unlink(missing_ok=True)

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or remove those that are None. Existence and uid of the object are not checked.

        If a command created the manifest, the annotations are written into it, else to `.status/annotations/`.

        Raises:
            AgentMemoryError: If the development stack created the object, or another author's manifest has one of the
                annotations.
        """
        name = (kind, metadata.namespace, metadata.name)
        if not self._own_file(name).is_file() and not self._manifest_annotations(name) & annotations.keys():
            self._keep_annotations(name, annotations)
            return
        path = self._require_own_file(name, f"{_describe_edits(annotations)} there")
        document = yaml.load(path.read_text("utf-8"), KubectlLoader)
        existing = document["metadata"].get("annotations") or {}
        merged = existing | dict(annotations)
        document["metadata"]["annotations"] = {key: value for key, value in merged.items() if value is not None}
        self._write(path, document)

    def _manifest_annotations(self, name: Name) -> set[str]:
        """Return the names of the annotations in an object's manifest."""
        manifests = ManifestFolder(self._folder, keeps_status=False, implies_connections=True)
        documents = (document for _, document in manifests.scan() if name_of(document) == name)
        return {key for document in documents for key in document["metadata"].get("annotations") or {}}

    def _keep_annotations(self, name: Name, annotations: Mapping[str, str | None]) -> None:
        self._check_not_created(name)
        status = self._folder / ".status"
        for folder in (status, status / ANNOTATIONS):
            ensure_folder(folder)
        path = status / ANNOTATIONS / f"{_file_name(name)}.json"
        merged = read_annotations(path) | dict(annotations)
        write_file(path, json.dumps({key: value for key, value in merged.items() if value is not None}))

    async def add_takeovers(self, namespace: str, name: str, entries: Sequence[Json]) -> None:
        """Raise always: the author of a QdrantConnection has to edit its manifest.

        Raises:
            AgentMemoryError: Always. The message contains the entries to add.
        """
        raise AgentMemoryError(
            f"QdrantConnection {namespace}/{name} is in a manifest in {self._folder} that agentmemory did not write:"
            f" add {json.dumps(entries)} to its spec.takeovers"
        )

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        """Return a Secret manifest of the folder with its values, or None if there is none."""
        return await self._scanned().read_secret(namespace, name)

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a Namespace manifest, and the label that Kubernetes sets on each namespace."""
        return await self._scanned().labels(namespace)

    def _scanned(self) -> ManifestFolder:
        folder = ManifestFolder(self._folder, keeps_status=False)
        folder.scan()
        return folder

    def _objects(self) -> dict[Name, Json]:
        """Return all objects of manifests and of the development stack.

        An object that the development stack has read already is returned with its status.
        """
        status = self._folder / ".status"
        records = {name_of(item): item for item in _documents_in(status)}
        manifests = ManifestFolder(self._folder, keeps_status=False, implies_connections=True)
        declared = [document for _, document in manifests.scan()]
        declared += _documents_in(status / "created")
        return {name_of(item): records.get(name_of(item), item) for item in declared}

    def _require_own_file(self, name: Name, remedy: str) -> Path:
        """Return the file of an object that a command has created.

        Raises:
            AgentMemoryError: If the object comes from another author's manifest, or the development stack created it.
        """
        path = self._own_file(name)
        kind, namespace, base = name
        self._check_not_created(name)
        if not path.is_file():
            raise AgentMemoryError(
                f"{kind} {namespace}/{base} is in a manifest in {self._folder} that agentmemory did not write: {remedy}"
            )
        return path

    def _check_not_created(self, name: Name) -> None:
        """Raise AgentMemoryError if the development stack created the object."""
        kind, namespace, base = name
        if (self._folder / ".status" / "created" / f"{_file_name(name)}.json").is_file():
            raise AgentMemoryError(
                f"{kind} {namespace}/{base} was created by the snapshot schedule of the development stack and cannot "
                f"be changed here: retention removes it"
            )

    def _own_file(self, name: Name) -> Path:
        return self._folder / f"{_file_name(name)}.yaml"

    @staticmethod
    def _write(path: Path, document: Json) -> None:
        write_file(path, dump_yaml(document))


def _file_name(name: Name) -> str:
    kind, namespace, object_name = name
    return f"{namespace}.{object_name}.{kind.lower()}"


def _describe_edits(annotations: Mapping[str, str | None]) -> str:
    """Describe the edits that the user has to make."""
    edits = [f"remove the annotation {key}" for key, value in annotations.items() if value is None]
    edits += [f"set the annotation {key}: {value!r}" for key, value in annotations.items() if value is not None]
    return " and ".join(edits)


def _documents_in(folder: Path) -> list[Json]:
    documents = []
    for path in sorted(folder.glob("*.json")):
        # Skip a file that is deleted after it was listed.
        with contextlib.suppress(FileNotFoundError):
            documents.append(json.loads(path.read_text("utf-8")))
    return documents
