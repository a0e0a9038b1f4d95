"""What the sources have seen: every object of our kinds as it last came, and who owns which slug.

The operator and the development stack feed it from their sources (Kubernetes, a folder); passes read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import Json

K = TypeVar("K")

AGENT_MEMORY = "AgentMemory"
QDRANT_CONNECTION = "QdrantConnection"
MEMORY_SNAPSHOT = "MemorySnapshot"
MEMORY_RESTORE = "MemoryRestore"

# Where a kind that is done once names its AgentMemory.
_MEMORY_REFS = {MEMORY_SNAPSHOT: "agentMemoryRef", MEMORY_RESTORE: "target"}


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(document: Mapping[str, Any]) -> Key:
    """Return the key of an object as it came."""
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", "default"), metadata["name"])


def key_of_memory(memory: AgentMemory) -> Key:
    """Return the key of a parsed AgentMemory."""
    return Key(AGENT_MEMORY, memory.metadata.namespace, memory.metadata.name)


def holds_collection(document: Mapping[str, Any]) -> bool:
    """Tell whether a pass over the AgentMemory has brought its collection about."""
    status = document.get("status")
    return isinstance(status, dict) and bool(status.get("collection"))


def owned_memory(table: "ObjectTable", key: Key) -> AgentMemory | None:
    """Return the AgentMemory, None of one that is gone, being deleted, not valid, or not the owner of its slug."""
    document = table.get(key)
    if document is None or document["metadata"].get("deletionTimestamp"):
        return None
    try:
        memory = parse_agent_memory(document)
    except SpecInvalid:
        return None
    return memory if table.owner_of(memory.slug) == key else None


def slug_of(document: Mapping[str, Any]) -> str:
    """Return the slug an AgentMemory claims, valid or not."""
    spec = document.get("spec")
    agent = spec.get("agent") if isinstance(spec, dict) else None
    return str(agent or document["metadata"]["name"])


def memory_named(document: Mapping[str, Any]) -> Key | None:
    """Return the AgentMemory that a snapshot or restore is for, None where it names none, and of other kinds."""
    spec, field_ = document.get("spec"), _MEMORY_REFS.get(document["kind"])
    ref = spec.get(field_) if field_ and isinstance(spec, dict) else None
    name = ref.get("name") if isinstance(ref, dict) else None
    return Key(AGENT_MEMORY, key_of(document).namespace, name) if isinstance(name, str) else None


def names_on_record(table: "ObjectTable") -> list[str | None]:
    """Return every physical name that a snapshot or a restore knows of."""
    documents = [*table.documents(MEMORY_RESTORE), *table.documents(MEMORY_SNAPSHOT)]
    statuses = [document.get("status") or {} for document in documents]
    replaced = [(status.get("previousCollection") or {}).get("physical") for status in statuses]
    return [*(status.get("physical") for status in statuses), *replaced]


@dataclass(slots=True)
class ObjectTable:
    """The objects by key, the claims on each slug, and what is done for each AgentMemory."""

    _documents: dict[Key, Json] = field(default_factory=dict)
    _kinds: dict[str, set[Key]] = field(default_factory=dict)
    _claims: dict[str, set[Key]] = field(default_factory=dict)
    _jobs: dict[Key, set[Key]] = field(default_factory=dict)

    def put(self, document: Json) -> bool:
        """Take in an object; tell whether a pass has to look at it.

        A change of status alone is our own writing and no reason.
        """
        key = key_of(document)
        before = self._documents.get(key)
        if before is not None:
            self._unclaim(key, before)
        self._documents[key] = document
        self._kinds.setdefault(key.kind, set()).add(key)
        if key.kind == AGENT_MEMORY:
            self._claims.setdefault(slug_of(document), set()).add(key)
        elif memory := memory_named(document):
            self._jobs.setdefault(memory, set()).add(key)
        return before is None or _relevant(before) != _relevant(document)

    def remove(self, key: Key) -> None:
        """Forget an object; one that is unknown is no error."""
        document = self._documents.pop(key, None)
        if document is not None:
            _discard(self._kinds, key.kind, key)
            self._unclaim(key, document)

    def get(self, key: Key) -> Json | None:
        """Return the object as it last came."""
        return self._documents.get(key)

    def keys(self, kind: str) -> list[Key]:
        """Return the keys of one kind, sorted."""
        return sorted(self._kinds.get(kind, ()))

    def documents(self, kind: str) -> list[Json]:
        """Return the objects of one kind, in no order."""
        return [self._documents[key] for key in self._kinds.get(kind, ())]

    def users_of(self, connection: Key) -> list[Key]:
        """Return the AgentMemories that refer to a connection."""
        return [key for key in self.keys(AGENT_MEMORY) if self.connection_of(key) == connection]

    def memory_of(self, key: Key) -> Key | None:
        """Return the AgentMemory that a snapshot or restore is for, None where it names none."""
        return memory_named(self._documents[key]) if key in self._documents else None

    def job_keys(self, memory: Key, kind: str) -> list[Key]:
        """Return the keys of the snapshots, or of the restores, that are for an AgentMemory, sorted."""
        return sorted(key for key in self._jobs.get(memory, ()) if key.kind == kind)

    def jobs_of(self, memory: Key, kind: str) -> list[Json]:
        """Return the snapshots, or the restores, that are for an AgentMemory, sorted by name."""
        return [self._documents[key] for key in self.job_keys(memory, kind)]

    def connection_of(self, key: Key) -> Key | None:
        """Return the connection that an object goes by, None where none is named in a way that makes sense."""
        if key.kind in _MEMORY_REFS:
            memory = self.memory_of(key)
            return self.connection_of(memory) if memory else None
        ref = self._spec(key).get("connectionRef") if key in self._documents else None
        if not isinstance(ref, dict) or not isinstance(ref.get("name"), str):
            return None
        return Key(QDRANT_CONNECTION, str(ref.get("namespace") or key.namespace), ref["name"])

    def lane_of(self, key: Key) -> tuple[str, Key | None]:
        """Return what shares a bounded number of passes: the objects of one connection; a connection is by itself."""
        if key.kind == QDRANT_CONNECTION:
            return key.kind, key
        return key.kind, self.connection_of(key)

    def owner_of(self, slug: str) -> Key | None:
        """Return who owns a slug: the oldest claim, by creation time, then who has the collection, then uid.

        Creation times are whole seconds: of two objects of one second, the uid might choose the one that came too late.
        """
        return min(self._claims.get(slug, ()), key=self._age, default=None)

    def claimants_of(self, slug: str) -> Iterable[Key]:
        """Return all objects that claim a slug, sorted."""
        return sorted(self._claims.get(slug, ()))

    def _age(self, key: Key) -> tuple[str, bool, str]:
        document = self._documents[key]
        metadata = document["metadata"]
        return metadata.get("creationTimestamp") or "", not holds_collection(document), metadata.get("uid") or ""

    def _spec(self, key: Key) -> Json:
        spec = self._documents[key].get("spec")
        return spec if isinstance(spec, dict) else {}

    def _unclaim(self, key: Key, document: Json) -> None:
        if memory := memory_named(document):
            _discard(self._jobs, memory, key)
        _discard(self._claims, slug_of(document), key)


def _discard(sets: dict[K, set[Key]], owner: K, key: Key) -> None:
    """Take a key out of a set, and the set out of its dict with the last one."""
    members = sets.get(owner, set())
    members.discard(key)
    if not members:
        sets.pop(owner, None)


def _relevant(document: Json) -> tuple[Any, ...]:
    """Return the part of an object whose change asks for a pass; kopf's and kubectl's annotations do not."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    ours = {name: value for name, value in annotations.items() if name.startswith("agentmemory.dev/")}
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), ours
