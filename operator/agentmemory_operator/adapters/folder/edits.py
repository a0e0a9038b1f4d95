"""The folder of manifests that `agentmemory dev` watches, as commands of another process read and write it."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from agentmemory_operator.adapters.folder.objects import ANNOTATIONS, CLUSTER_ID, ManifestFolder, read_annotations
from agentmemory_operator.adapters.folder.own_files import make_folder, write_file
from agentmemory_operator.connections.rules.secret_hosts import KeptSecret
from agentmemory_operator.errors import AgentMemoryError, NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kubectl_yaml import KubectlLoader, dump_yaml

Name = tuple[str, str, str]


class ManifestFiles:
    """Implements ports.JobObjects: a command's objects are files of their own, which it alone changes and deletes.

    A manifest of somebody else stays as it is: annotations on its object are kept in `.status/annotations/`.

    Args:
        folder: manifests; the status is read beside them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def cluster_id(self) -> str:
        """What stands for the cluster in markers, as the development stack left it here.

        Raises:
            TransientError: it did not yet.
        """
        try:
            return (self._folder / ".status" / CLUSTER_ID).read_text("utf-8")
        except FileNotFoundError as exc:
            raise TransientError(f"{self._folder} has no cluster ID: start `agentmemory dev` on it") from exc

    @property
    def default_namespace(self) -> str:
        """The namespace of the AgentMemories, where all are in one."""
        found = {namespace for kind, namespace, _ in self._objects() if kind == "AgentMemory"}
        return found.pop() if len(found) == 1 else "default"

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """An object with the status that the development stack gave it."""
        found = self._objects().get((kind, namespace, name))
        if found is None:
            raise NotFound(f"there is no {kind} {namespace}/{name} in {self._folder}")
        return found

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Every object of a kind; files have no versions."""
        return await self.list_in(kind, ""), ""

    async def event_times(self, _: str) -> dict[tuple[str, str], str]:
        """Nothing: the development stack logs its events."""
        return {}

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """The objects of a kind in one namespace, or in all where that is empty."""
        spaces = (namespace,) if namespace else {name[1] for name in self._objects()}
        return [found for name, found in self._objects().items() if name[0] == kind and name[1] in spaces]

    async def create_object(self, document: Json) -> bool:
        """Write a manifest of its own."""
        metadata = document["metadata"]
        name = (document["kind"], metadata["namespace"], metadata["name"])
        if name in self._objects():
            return False
        self._write(self._own_file(name), document)
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the manifest that a command has written."""
        name = (kind, metadata.namespace, metadata.name)
        self._own(name, "delete it there").unlink(missing_ok=True)

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or remove those that are None: in the manifest that a command wrote, else beside the status.

        Raises:
            AgentMemoryError: The development stack made the object, or a manifest of somebody else has one of them.
        """
        name = (kind, metadata.namespace, metadata.name)
        if not self._own_file(name).is_file() and not self._stated(name) & annotations.keys():
            self._keep_annotations(name, annotations)
            return
        path = self._own(name, f"{_told(annotations)} there")
        document = yaml.load(path.read_text("utf-8"), KubectlLoader)
        kept = document["metadata"].get("annotations") or {}
        changed = kept | dict(annotations)
        document["metadata"]["annotations"] = {key: value for key, value in changed.items() if value is not None}
        self._write(path, document)

    def _stated(self, name: Name) -> set[str]:
        """The annotations in an object's manifest."""
        manifests = ManifestFolder(self._folder, keeps_status=False, implies_connections=True)
        found = (document for _, document in manifests.scan() if _name_of(document) == name)
        return {key for document in found for key in document["metadata"].get("annotations") or {}}

    def _keep_annotations(self, name: Name, annotations: Mapping[str, str | None]) -> None:
        self._refuse_created(name)
        status = self._folder / ".status"
        for folder in (status, status / ANNOTATIONS):
            make_folder(folder)
        path = status / ANNOTATIONS / f"{_file_name(name)}.json"
        changed = read_annotations(path) | dict(annotations)
        write_file(path, json.dumps({key: value for key, value in changed.items() if value is not None}))

    async def add_takeovers(self, namespace: str, name: str, entries: Sequence[Json]) -> None:
        """Refuse: a QdrantConnection is in its author's manifest.

        Raises:
            AgentMemoryError: says what to write there.
        """
        raise AgentMemoryError(
            f"QdrantConnection {namespace}/{name} is in a manifest in {self._folder} that agentmemory did not write:"
            f" add {json.dumps(entries)} to its spec.takeovers"
        )

    async def read_secret(self, namespace: str, name: str) -> KeptSecret | None:
        """A Secret manifest of the folder with its values, None where there is none."""
        return await self._scanned().read_secret(namespace, name)

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """The labels that a Namespace manifest of the folder gives."""
        return await self._scanned().labels(namespace)

    def _scanned(self) -> ManifestFolder:
        folder = ManifestFolder(self._folder, keeps_status=False)
        folder.scan()
        return folder

    def _objects(self) -> dict[Name, Json]:
        """What the manifests and the operator of the development stack declare, as it has taken them in."""
        status = self._folder / ".status"
        taken = {_name_of(found): found for found in _documents_in(status)}
        manifests = ManifestFolder(self._folder, keeps_status=False, implies_connections=True)
        declared = [document for _, document in manifests.scan()]
        declared += _documents_in(status / "created")
        return {_name_of(found): taken.get(_name_of(found), found) for found in declared}

    def _own(self, name: Name, way_out: str) -> Path:
        """The file that a command wrote for an object.

        Raises:
            AgentMemoryError: somebody else's manifest declares it, or the development stack made it.
        """
        path = self._own_file(name)
        kind, namespace, own = name
        self._refuse_created(name)
        if not path.is_file():
            raise AgentMemoryError(
                f"{kind} {namespace}/{own} is in a manifest in {self._folder} that agentmemory did not write: {way_out}"
            )
        return path

    def _refuse_created(self, name: Name) -> None:
        """Raise if the development stack made the object."""
        kind, namespace, own = name
        if (self._folder / ".status" / "created" / f"{_file_name(name)}.json").is_file():
            raise AgentMemoryError(
                f"{kind} {namespace}/{own} was created by the snapshot schedule of the development stack and cannot "
                f"be changed here: retention removes it"
            )

    def _own_file(self, name: Name) -> Path:
        return self._folder / f"{_file_name(name)}.yaml"

    @staticmethod
    def _write(path: Path, document: Json) -> None:
        write_file(path, dump_yaml(document))


def _file_name(name: Name) -> str:
    kind, namespace, own = name
    return f"{namespace}.{own}.{kind.lower()}"


def _told(annotations: Mapping[str, str | None]) -> str:
    """What somebody is to do by hand."""
    done = [f"remove the annotation {key}" for key, value in annotations.items() if value is None]
    done += [f"set the annotation {key}: {value!r}" for key, value in annotations.items() if value is not None]
    return " and ".join(done)


def _documents_in(folder: Path) -> list[Json]:
    documents = []
    for path in sorted(folder.glob("*.json")):
        # What goes meanwhile is gone.
        with contextlib.suppress(FileNotFoundError):
            documents.append(json.loads(path.read_text("utf-8")))
    return documents


def _name_of(document: Json) -> Name:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace") or "default", metadata["name"]
