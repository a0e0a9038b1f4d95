"""What the sources have seen: every object of our kinds as it last came, and which of them has which slug.

The operator and the development stack feed it from their sources (Kubernetes, a folder); passes read it. Every part of
the operator that has something to say in a status writes it by `Statuses`, and the table knows it at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.runtime.fair_line import LinePlace
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.readable_status import with_readable_status
from agentmemory_operator.spec.times import render_second

K = TypeVar("K")

AGENT_MEMORY = "AgentMemory"
QDRANT_CONNECTION = "QdrantConnection"
MEMORY_SNAPSHOT = "MemorySnapshot"
MEMORY_RESTORE = "MemoryRestore"

# Where a kind that is done once names its AgentMemory.
_MEMORY_REFS = {MEMORY_SNAPSHOT: "agentMemoryRef", MEMORY_RESTORE: "target"}

MOST_PARSED = 1024
"""AgentMemories that are kept as they were parsed; most are 3 to 5 kB."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(document: Mapping[str, Any]) -> Key:
    """The key of an object as it came."""
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", "default"), metadata["name"])


def key_of_memory(memory: AgentMemory) -> Key:
    """The key of a parsed AgentMemory."""
    return Key(AGENT_MEMORY, memory.metadata.namespace, memory.metadata.name)


def holds_collection(document: Mapping[str, Any]) -> bool:
    """Whether a pass over the AgentMemory has brought its collection about."""
    status = document.get("status")
    return isinstance(status, dict) and bool(status.get("collection"))


def owned_memory(table: "ObjectTable", key: Key) -> AgentMemory | None:
    """The AgentMemory, None of one that is gone, being deleted, not valid, or not the owner of its slug."""
    document = table.get(key)
    if document is None or document["metadata"].get("deletionTimestamp"):
        return None
    try:
        memory = table.parse(document)
    except SpecInvalid:
        return None
    return memory if table.owner_of(memory.slug) == key else None


def slug_of(document: Mapping[str, Any]) -> str:
    """The slug an AgentMemory claims, valid or not."""
    spec = document.get("spec")
    agent = spec.get("agent") if isinstance(spec, dict) else None
    return str(agent or document["metadata"]["name"])


def memory_named(document: Mapping[str, Any]) -> Key | None:
    """The AgentMemory that a snapshot or restore is for, None where it names none, and of other kinds."""
    spec, field_ = document.get("spec"), _MEMORY_REFS.get(document["kind"])
    ref = spec.get(field_) if field_ and isinstance(spec, dict) else None
    name = ref.get("name") if isinstance(ref, dict) else None
    return Key(AGENT_MEMORY, key_of(document).namespace, name) if isinstance(name, str) else None


def documents_in(table: "ObjectTable", kind: str, namespace: str) -> list[Json]:
    """The objects of a kind in one namespace: what those of others say of themselves is nothing to it."""
    return [document for document in table.documents(kind) if key_of(document).namespace == namespace]


def names_on_record(table: "ObjectTable", namespace: str) -> list[str | None]:
    """Every physical name that a snapshot or a restore of a namespace knows of."""
    documents = [found for kind in (MEMORY_RESTORE, MEMORY_SNAPSHOT) for found in documents_in(table, kind, namespace)]
    statuses = [document.get("status") or {} for document in documents]
    replaced = [(status.get("previousCollection") or {}).get("physical") for status in statuses]
    abandoned = [name for status in statuses for name in status.get("abandoned") or ()]
    return [*(status.get("physical") for status in statuses), *replaced, *abandoned]


@dataclass(slots=True)
class ObjectTable:
    """The objects by key, those that name each slug, and what is done for each AgentMemory.

    Attributes:
        claims: which namespace a slug belongs to; replaced as a whole.
    """

    claims: ClaimSet = NO_CLAIMS
    _documents: dict[Key, Json] = field(default_factory=dict)
    _kinds: dict[str, set[Key]] = field(default_factory=dict)
    _claimants: dict[str, set[Key]] = field(default_factory=dict)
    _jobs: dict[Key, set[Key]] = field(default_factory=dict)
    _parsed: LRUCache[Key, tuple[Json, object, AgentMemory]] = field(default_factory=lambda: LRUCache(MOST_PARSED))
    # The versions from which on the sources have brought the statuses that were written here.
    _written: dict[Key, int] = field(default_factory=dict)

    def put(self, document: Json) -> bool:
        """Take in an object; tell whether a pass has to look at it.

        A change of status alone is our own writing and no reason. What cannot be read of it counts as not there.
        """
        key = key_of(document)
        before = self._documents.get(key)
        known = before.get("status") if before else None
        is_late = uid_of(before) == uid_of(document) and _version_of(document) < self._written.get(key, 0)
        if not is_late:
            self._written.pop(key, None)
        if known is not None and (is_late or known == document.get("status")):
            # It comes back as a pass has just written it. What was read stays: to Python, True is equal to 1.
            document = document | {"status": known}
        else:
            document = with_readable_status(document)
        if before is not None:
            self._unclaim(key, before)
        self._documents[key] = document
        self._kinds.setdefault(key.kind, set()).add(key)
        if key.kind == AGENT_MEMORY:
            self._claimants.setdefault(slug_of(document), set()).add(key)
        elif memory := memory_named(document):
            self._jobs.setdefault(memory, set()).add(key)
        return before is None or _relevant(before) != _relevant(document)

    def remove(self, key: Key) -> None:
        """Forget an object; one that is unknown is no error."""
        document = self._documents.pop(key, None)
        if document is not None:
            _discard(self._kinds, key.kind, key)
            self._unclaim(key, document)
            self._parsed.pop(key, None)
            self._written.pop(key, None)

    def put_status(self, key: Key, uid: str, status: Json, version: str) -> None:
        """Take in a status that was written; it stands until the object comes as it was then, or later.

        Args:
            version: the resourceVersion that the object has with it; where that is empty, whatever comes next counts.
        """
        document, written = self._documents.get(key), _number(version)
        if document is None or uid_of(document) != uid:
            return
        if written and written < max(self._written.get(key, 0), _version_of(document)):
            # Somebody wrote after it, and that has come already.
            return
        document["status"] = status
        if written:
            self._written[key] = written

    def get(self, key: Key) -> Json | None:
        """The object as it last came."""
        return self._documents.get(key)

    def parse(self, document: Json) -> AgentMemory:
        """The AgentMemory that a document describes, as it stands; it is judged once, whatever its status says.

        Raises:
            SpecInvalid: names every wrong field.
        """
        key, told = key_of(document), document.get("status")
        known, status, memory = self._parsed.get(key, (None, None, None))
        if memory is None or known is None or not (known is document or _is_judged_alike(known, document)):
            memory = parse_agent_memory(document)
        elif known is not document or status is not told:
            memory = _as_told(memory, document)
        self._parsed[key] = document, told, memory
        return memory

    def keys(self, kind: str) -> list[Key]:
        """The keys of one kind, sorted."""
        return sorted(self._kinds.get(kind, ()))

    def documents(self, kind: str) -> list[Json]:
        """The objects of one kind, in no order."""
        return [self._documents[key] for key in self._kinds.get(kind, ())]

    def users_of(self, connection: Key) -> list[Key]:
        """The AgentMemories that refer to a connection."""
        return [key for key in self.keys(AGENT_MEMORY) if self.connection_of(key) == connection]

    def memory_of(self, key: Key) -> Key | None:
        """The AgentMemory that a snapshot or restore is for, None where it names none."""
        return memory_named(self._documents[key]) if key in self._documents else None

    def job_keys(self, memory: Key, kind: str) -> list[Key]:
        """The keys of the snapshots, or of the restores, that are for an AgentMemory, sorted."""
        return sorted(key for key in self._jobs.get(memory, ()) if key.kind == kind)

    def jobs_of(self, memory: Key, kind: str) -> list[Json]:
        """The snapshots, or the restores, that are for an AgentMemory, sorted by name."""
        return [self._documents[key] for key in self.job_keys(memory, kind)]

    def connection_of(self, key: Key) -> Key | None:
        """The connection that an object goes by, None where none is named in a way that makes sense."""
        if key.kind in _MEMORY_REFS:
            memory = self.memory_of(key)
            return self.connection_of(memory) if memory else None
        ref = self._spec(key).get("connectionRef") if key in self._documents else None
        if not isinstance(ref, dict) or not isinstance(ref.get("name"), str):
            return None
        return Key(QDRANT_CONNECTION, str(ref.get("namespace") or key.namespace), ref["name"])

    def place_of(self, key: Key) -> LinePlace:
        """Whose a pass is, the namespace's, and what it may wait for: the object's server."""
        return LinePlace(key.namespace, key if key.kind == QDRANT_CONNECTION else self.connection_of(key))

    def owner_of(self, slug: str) -> Key | None:
        """Who owns a slug: of those in the namespace that it belongs to, the oldest by creation time.

        Creation times are whole seconds: of one second, whoever has the collection comes first, then the uid. Where no
        claim says to which namespace a slug belongs, the oldest of all has it. None where nobody may.
        """
        namespace, claimants = self.claims.namespace_of(slug), self._claimants.get(slug, ())
        permitted = (key for key in claimants if namespace in (None, key.namespace))
        return min(permitted, key=self._age, default=None)

    def namespace_of(self, slug: str) -> str | None:
        """The namespace that a slug belongs to, by its claim, else by its oldest object; None of a free one."""
        claimed = self.claims.namespace_of(slug)
        if claimed is not None:
            return claimed
        owner = self.owner_of(slug)
        return owner.namespace if owner else None

    def unclaimed_in(self, namespace: str) -> Iterator[Key]:
        """Yield the owners of slugs that no claim names, of one namespace, as they came."""
        for slug, claimants in self._claimants.items():
            # Most are claimed, or are all another namespace's.
            if slug in self.claims.claims or all(key.namespace != namespace for key in claimants):
                continue
            owner = self.owner_of(slug)
            if owner is not None and owner.namespace == namespace:
                yield owner

    def claimants_of(self, slug: str) -> Iterable[Key]:
        """All objects that claim a slug, sorted."""
        return sorted(self._claimants.get(slug, ()))

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
        _discard(self._claimants, slug_of(document), key)


def _discard(sets: dict[K, set[Key]], owner: K, key: Key) -> None:
    """Take a key out of a set, and the set out of its dict with the last one."""
    members = sets.get(owner, set())
    members.discard(key)
    if not members:
        sets.pop(owner, None)


def _relevant(document: Json) -> tuple[Any, ...]:
    """The part of an object whose change asks for a pass; kopf's and kubectl's annotations do not."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    ours = {name: value for name, value in annotations.items() if name.startswith("agentmemory.dev/")}
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), ours


def _is_judged_alike(one: Json, other: Json) -> bool:
    """Whether two states of an object differ in nothing but its status and version."""
    first, second = _judged_part(one), _judged_part(other)
    # To Python, True is equal to 1. What is not equal may be nested too deeply for `repr`.
    return first == second and repr(first) == repr(second)


def _judged_part(document: Json) -> Json:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return {name: value for name, value in document.items() if name != "status"} | {"metadata": metadata}


def _as_told(memory: AgentMemory, document: Json) -> AgentMemory:
    """An AgentMemory with the status and the version that a later state of it has."""
    version = document["metadata"].get("resourceVersion") or ""
    metadata = memory.metadata.model_copy(update={"resource_version": version})
    return memory.model_copy(update={"metadata": metadata, "status": dict(document.get("status") or {})})


def _version_of(document: Json) -> int:
    return _number(str(document["metadata"].get("resourceVersion") or ""))


def _number(version: str) -> int:
    """A resourceVersion as the number that Kubernetes and its clients compare it by; 0 where it is none."""
    return int(version) if version.isdecimal() else 0


def connection_key(named: str) -> Key:
    """The key of a connection that is named as NAMESPACE/NAME."""
    namespace, _, name = named.partition("/")
    return Key(QDRANT_CONNECTION, namespace, name)


def uid_of(document: Json | None) -> str:
    """The uid of an object; none has an empty one."""
    return document["metadata"].get("uid", "") if document else ""


@dataclass(frozen=True, slots=True)
class Statuses:
    """Writes statuses; the table knows them at once, though the watch brings them only later."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock

    @property
    def now(self) -> str:
        """The time as statuses say it."""
        return render_second(self.clock.now_ms() / 1000)

    async def write(self, document: Json, metadata: Metadata, status: Json) -> bool:
        """Replace the status of an object where it differs; tell whether it did.

        Args:
            document: the object as the writer came upon it; it has the new status from then on, or what came after it.
        """
        if status == (document.get("status") or {}):
            return False
        version = await self.cluster.write_status(document["kind"], metadata, status)
        key = key_of(document)
        self.table.put_status(key, metadata.uid, status, version)
        if self.table.get(key) is not document:
            document["status"] = status
        return True
