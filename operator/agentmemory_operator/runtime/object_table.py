"""Object table: the last received state of every object of the project's kinds, and the owner of each slug.

The operator, the API process and the development stack update it from their sources (Kubernetes, a folder). Every part
of the operator writes statuses through `Statuses`, which also updates the table immediately, before the watch delivers
the change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.runtime.fair_queue import TenantLane
from agentmemory_operator.spec.effective.embedding import WORDLLAMA, with_default_embedding
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.readable_status import with_readable_status
from agentmemory_operator.spec.times import render_second

K = TypeVar("K")

AGENT_MEMORY = "AgentMemory"
QDRANT_CONNECTION = "QdrantConnection"
MEMORY_SNAPSHOT = "MemorySnapshot"
MEMORY_RESTORE = "MemoryRestore"

# Field of the spec that refers to the AgentMemory.
_MEMORY_REFS = {MEMORY_SNAPSHOT: "agentMemoryRef", MEMORY_RESTORE: "target"}

MAX_PARSED_MEMORIES = 1024
"""Maximum number of cached parsed AgentMemories, most of which take 3 to 5 kB."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Kind, namespace and name of an object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(document: Mapping[str, Any]) -> Key:
    """Return the key of an object document. The namespace is `default` if the document has none."""
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", "default"), metadata["name"])


def key_of_memory(memory: AgentMemory) -> Key:
    """Return the key of a parsed AgentMemory."""
    return Key(AGENT_MEMORY, memory.metadata.namespace, memory.metadata.name)


def has_collection(document: Mapping[str, Any]) -> bool:
    """Return whether the status of an AgentMemory names a collection, which a pass has created or adopted."""
    status = document.get("status")
    return isinstance(status, dict) and bool(status.get("collection"))


def owned_memory(table: "ObjectTable", key: Key) -> AgentMemory | None:
    """Return the parsed AgentMemory. None if it is absent, being deleted, invalid, or not the owner of its slug."""
    document = table.get(key)
    if document is None or document["metadata"].get("deletionTimestamp"):
        return None
    try:
        memory = table.parse(document)
    except SpecInvalid:
        return None
    return memory if table.find_owner(memory.slug) == key else None


def slug_of(document: Mapping[str, Any]) -> str:
    """Return the slug that an AgentMemory claims. The slug may be malformed."""
    spec = document.get("spec")
    agent = spec.get("agent") if isinstance(spec, dict) else None
    return str(agent or document["metadata"]["name"])


def target_memory_key(document: Mapping[str, Any]) -> Key | None:
    """Return the key of the AgentMemory that a snapshot or restore is for.

    None if it names none, or for other kinds.
    """
    spec, field_ = document.get("spec"), _MEMORY_REFS.get(document["kind"])
    ref = spec.get(field_) if field_ and isinstance(spec, dict) else None
    name = ref.get("name") if isinstance(ref, dict) else None
    return Key(AGENT_MEMORY, key_of(document).namespace, name) if isinstance(name, str) else None


def documents_in(table: "ObjectTable", kind: str, namespace: str) -> list[Json]:
    """Return the objects of a kind in one namespace, unsorted. Reads all objects of the kind."""
    return [document for document in table.documents(kind) if key_of(document).namespace == namespace]


def read_recorded_names(table: "ObjectTable", namespace: str) -> list[str | None]:
    """Return all physical names in the statuses of a namespace's snapshots and restores; None for each absent field.

    Statuses of other namespaces are not read, because they prove nothing about this namespace.
    """
    documents = [
        snapshot_or_restore
        for kind in (MEMORY_RESTORE, MEMORY_SNAPSHOT)
        for snapshot_or_restore in documents_in(table, kind, namespace)
    ]
    statuses = [document.get("status") or {} for document in documents]
    replaced = [(status.get("previousCollection") or {}).get("physical") for status in statuses]
    abandoned = [name for status in statuses for name in status.get("abandoned") or ()]
    return [*(status.get("physical") for status in statuses), *replaced, *abandoned]


@dataclass(slots=True)
class ObjectTable:
    """Objects by key, with indexes: claimants of each slug, and snapshots and restores of each AgentMemory.

    Attributes:
        claims: The namespace that each slug belongs to; only replaced as a whole.
        default_embedding: Embedding of objects whose spec and status name none: a key of `DEFAULT_EMBEDDINGS`.
    """

    claims: ClaimSet = NO_CLAIMS
    default_embedding: str = WORDLLAMA
    _documents: dict[Key, Json] = field(default_factory=dict)
    _kinds: dict[str, set[Key]] = field(default_factory=dict)
    _claimants: dict[str, set[Key]] = field(default_factory=dict)
    _jobs: dict[Key, set[Key]] = field(default_factory=dict)
    _parsed: LRUCache[Key, tuple[Json, object, AgentMemory]] = field(
        default_factory=lambda: LRUCache(MAX_PARSED_MEMORIES)
    )
    # resourceVersion of the last status written here. Older versions from a source do not have that status yet.
    _written: dict[Key, int] = field(default_factory=dict)

    def put(self, document: Json) -> bool:
        """Store an object from a source; return whether it needs a pass.

        A pass is needed for a new object, and after a change of uid, generation, deletionTimestamp or this project's
        annotations. A change of the status alone needs no pass. Parts of the status that do not fit the schema are
        dropped. If the source is older than a status that `put_status` stored, that status is kept.
        """
        key = key_of(document)
        existing = self._documents.get(key)
        stored_status = existing.get("status") if existing else None
        is_late = uid_of(existing) == uid_of(document) and _version_of(document) < self._written.get(key, 0)
        if not is_late:
            self._written.pop(key, None)
        if stored_status is not None and (is_late or stored_status == document.get("status")):
            # The source echoes the stored status, or is older. Keep the stored status, because it was validated: the
            # received one may have other types and still be equal, because True == 1.
            document = document | {"status": stored_status}
        else:
            document = with_readable_status(document)
        if existing is not None:
            self._unclaim(key, existing)
        self._documents[key] = document
        self._kinds.setdefault(key.kind, set()).add(key)
        if key.kind == AGENT_MEMORY:
            self._claimants.setdefault(slug_of(document), set()).add(key)
        elif memory := target_memory_key(document):
            self._jobs.setdefault(memory, set()).add(key)
        return existing is None or _relevant(existing) != _relevant(document)

    def remove(self, key: Key) -> None:
        """Remove an object; a key that is not in the table is no error."""
        document = self._documents.pop(key, None)
        if document is not None:
            _discard(self._kinds, key.kind, key)
            self._unclaim(key, document)
            self._parsed.pop(key, None)
            self._written.pop(key, None)

    def put_status(self, key: Key, uid: str, status: Json, version: str) -> None:
        """Store a status that this process has written, unless a later version of the object is stored already.

        Older versions of the object that the source delivers afterwards do not replace it.

        Args:
            uid: uid of the object that the status was written to; an object of another uid is not changed.
            version: resourceVersion after the write. If it is no decimal number, the next event replaces the status.
        """
        document, written = self._documents.get(key), _number(version)
        if document is None or uid_of(document) != uid:
            return
        if written and written < max(self._written.get(key, 0), _version_of(document)):
            # Ignore the status: a later write has already arrived from the source.
            return
        document["status"] = status
        if written:
            self._written[key] = written

    def get(self, key: Key) -> Json | None:
        """Return the last received state of an object, or None if it is not in the table."""
        return self._documents.get(key)

    def parse(self, document: Json) -> AgentMemory:
        """Parse an AgentMemory document.

        The validated spec of the last document of its key is reused if at most status and resourceVersion have changed
        since; the result has the new ones. At most `MAX_PARSED_MEMORIES` are cached.

        Raises:
            SpecInvalid: If the document is invalid. The message names up to 20 invalid fields.
        """
        key, new_status = key_of(document), document.get("status")
        cached, status, memory = self._parsed.get(key, (None, None, None))
        if memory is None or cached is None or not (cached is document or _is_same_spec(cached, document)):
            memory = parse_agent_memory(document)
        elif cached is not document or status is not new_status:
            memory = _with_status(memory, document)
        memory = with_default_embedding(memory, self.default_embedding)
        self._parsed[key] = document, new_status, memory
        return memory

    def keys(self, kind: str) -> list[Key]:
        """Return the keys of one kind, sorted."""
        return sorted(self._kinds.get(kind, ()))

    def documents(self, kind: str) -> list[Json]:
        """Return the objects of one kind, unsorted."""
        return [self._documents[key] for key in self._kinds.get(kind, ())]

    def find_users(self, connection: Key) -> list[Key]:
        """Return the keys of the AgentMemories that refer to a connection, sorted."""
        return [key for key in self.keys(AGENT_MEMORY) if self.find_connection(key) == connection]

    def find_memory(self, key: Key) -> Key | None:
        """Return the key of the AgentMemory that a snapshot or restore names; the AgentMemory need not exist.

        None if `key` is not in the table, or its object names no AgentMemory.
        """
        return target_memory_key(self._documents[key]) if key in self._documents else None

    def list_job_keys(self, memory: Key, kind: str) -> list[Key]:
        """Return the keys of the snapshots or restores of an AgentMemory, sorted."""
        return sorted(key for key in self._jobs.get(memory, ()) if key.kind == kind)

    def list_jobs(self, memory: Key, kind: str) -> list[Json]:
        """Return the snapshots or restores of an AgentMemory, sorted by name."""
        return [self._documents[key] for key in self.list_job_keys(memory, kind)]

    def find_connection(self, key: Key) -> Key | None:
        """Return the connection that an object uses: its own reference, or that of its AgentMemory.

        None if there is no valid reference.
        """
        if key.kind in _MEMORY_REFS:
            memory = self.find_memory(key)
            return self.find_connection(memory) if memory else None
        ref = self._spec(key).get("connectionRef") if key in self._documents else None
        if not isinstance(ref, dict) or not isinstance(ref.get("name"), str):
            return None
        return Key(QDRANT_CONNECTION, str(ref.get("namespace") or key.namespace), ref["name"])

    def tenant_lane_of(self, key: Key) -> TenantLane:
        """Return tenant and lane of an object in a queue: its namespace, and the connection that it uses.

        The lane of a connection is the connection itself. It is None for an object without a valid reference.
        """
        return TenantLane(key.namespace, key if key.kind == QDRANT_CONNECTION else self.find_connection(key))

    def find_owner(self, slug: str) -> Key | None:
        """Return the AgentMemory that owns a slug, or None.

        Candidates are the claimants in the namespace that the slug's claim names. Without a claim, or while the claims
        are incomplete, they are all claimants. The oldest by creation time wins. Creation times are whole seconds;
        among equal ones, an object with a collection comes first, then the smaller uid.
        """
        namespace, claimants = self.claims.namespace_of(slug), self._claimants.get(slug, ())
        permitted = (key for key in claimants if namespace in (None, key.namespace))
        return min(permitted, key=self._age, default=None)

    def find_namespace(self, slug: str) -> str | None:
        """Return the namespace of a slug: from its claim, else from its owner. None for a free slug."""
        claimed_namespace = self.claims.namespace_of(slug)
        if claimed_namespace is not None:
            return claimed_namespace
        owner = self.find_owner(slug)
        return owner.namespace if owner else None

    def iter_unclaimed_owners(self, namespace: str) -> Iterator[Key]:
        """Yield the keys of a namespace's AgentMemories that own a slug without a claim, in order of insertion."""
        for slug, claimants in self._claimants.items():
            # Skip most slugs: they are claimed, or have no claimant in this namespace.
            if slug in self.claims.claims or all(key.namespace != namespace for key in claimants):
                continue
            owner = self.find_owner(slug)
            if owner is not None and owner.namespace == namespace:
                yield owner

    def list_claimants(self, slug: str) -> Iterable[Key]:
        """Return all AgentMemories that claim a slug, sorted."""
        return sorted(self._claimants.get(slug, ()))

    def _age(self, key: Key) -> tuple[str, bool, str]:
        document = self._documents[key]
        metadata = document["metadata"]
        return metadata.get("creationTimestamp") or "", not has_collection(document), metadata.get("uid") or ""

    def _spec(self, key: Key) -> Json:
        spec = self._documents[key].get("spec")
        return spec if isinstance(spec, dict) else {}

    def _unclaim(self, key: Key, document: Json) -> None:
        if memory := target_memory_key(document):
            _discard(self._jobs, memory, key)
        _discard(self._claimants, slug_of(document), key)


def _discard(sets: dict[K, set[Key]], owner: K, key: Key) -> None:
    """Remove a key from a set, and an empty set from the dict."""
    members = sets.get(owner, set())
    members.discard(key)
    if not members:
        sets.pop(owner, None)


def _relevant(document: Json) -> tuple[Any, ...]:
    """Return the parts of an object whose change needs a pass. Annotations of kopf and kubectl are not among them."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    own_annotations = {name: value for name, value in annotations.items() if name.startswith("agentmemory.dev/")}
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), own_annotations


def _is_same_spec(before: Json, after: Json) -> bool:
    """Return whether two states of an object differ at most in status and resourceVersion."""
    old_spec, new_spec = _without_status(before), _without_status(after)
    # `repr` distinguishes True from 1, which compare equal. Compare first: `before` was validated and is not deep, so a
    # value of `after` that is too deep for `repr` is found to differ.
    return old_spec == new_spec and repr(old_spec) == repr(new_spec)


def _without_status(document: Json) -> Json:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return {name: value for name, value in document.items() if name != "status"} | {"metadata": metadata}


def _with_status(memory: AgentMemory, document: Json) -> AgentMemory:
    """Return a copy of an AgentMemory with status and resourceVersion of a later document."""
    version = document["metadata"].get("resourceVersion") or ""
    metadata = memory.metadata.model_copy(update={"resource_version": version})
    return memory.model_copy(update={"metadata": metadata, "status": dict(document.get("status") or {})})


def _version_of(document: Json) -> int:
    return _number(str(document["metadata"].get("resourceVersion") or ""))


def _number(version: str) -> int:
    """Return a resourceVersion as an integer, as Kubernetes clients compare it; 0 if it is not decimal."""
    return int(version) if version.isdecimal() else 0


def connection_key(reference: str) -> Key:
    """Return the key of a connection from NAMESPACE/NAME."""
    namespace, _, name = reference.partition("/")
    return Key(QDRANT_CONNECTION, namespace, name)


def uid_of(document: Json | None) -> str:
    """Return the uid of an object; '' if it has none, and for None."""
    return document["metadata"].get("uid", "") if document else ""


@dataclass(frozen=True, slots=True)
class Statuses:
    """Writes statuses to the cluster, and to the table immediately, before the watch delivers them."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock

    @property
    def now(self) -> str:
        """Current UTC time, RFC 3339 in whole seconds, as in statuses."""
        return render_second(self.clock.now_ms() / 1000)

    async def write(self, document: Json, metadata: Metadata, status: Json) -> bool:
        """Replace the status of an object; return False if it is unchanged. A deleted object is no error.

        Args:
            document: The object as the caller read it. Its status is updated too, unless it is still the table's object
                and the source has delivered a later version.
        """
        if status == (document.get("status") or {}):
            return False
        version = await self.cluster.write_status(document["kind"], metadata, status)
        key = key_of(document)
        self.table.put_status(key, metadata.uid, status, version)
        if self.table.get(key) is not document:
            document["status"] = status
        return True
