"""A memory as one frozen value (`MemoryRecord`), and its form as the payload of a Qdrant point.

Times are Unix milliseconds. Most payload keys are the attribute names in camelCase (`PAYLOAD_KEYS`). Every point has
`rev`, which each write raises (except of `UNREVISED_KEYS`), and `updatedAt`. Copies and restores compare them to find
the newer version.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from pydantic.alias_generators import to_camel

from agentmemory_operator.memories.rules.entities import (
    ENTITIES_KEY,
    Entity,
    entities_from_payload,
    entities_to_payload,
)
from agentmemory_operator.memories.rules.ids import trace_id
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.zones.rules.sealing import is_locked

Payload = dict[str, Any]
Filled = TypeVar("Filled")

CONSOLIDATED_KEY, CONNECTIONS_KEY = "consolidated", "connections"
RUN_KEY, NOTED_KEY, CATEGORY_RUN_KEY = "consolidationRun", "notedByRun", "categoryByRun"
"""Ids of consolidation runs: of the run that created a memory, that added a note to it, and that set its category."""

IMPORTANCE_LEVELS = {"low": 0.25, "medium": 0.5, "high": 0.75, "critical": 1.0}
"""Importance, 0..1, by the name that a request may send instead of the number."""


def build_fast(kind: type[Filled], values: Mapping[str, Any]) -> Filled:
    """Create an instance of a frozen dataclass without slots, equal to the result of its constructor.

    The constructor would set each field separately, which took a third of the time of `record_of`.

    Raises:
        TypeError: If a required field is missing or a name is no field of the class.
    """
    factories, required, allowed = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    if not required <= values.keys() <= allowed:
        return kind(**values)
    instance = object.__new__(kind)
    # Set only values and computed defaults. Constant defaults are class attributes, which attribute lookup finds.
    instance.__dict__.update(values)
    for name, make in factories.items():
        if name not in values:
            instance.__dict__[name] = make()
    return instance


@cache
def _fields_of(kind: type[Any]) -> tuple[Mapping[str, Callable[[], Any]], frozenset[str], frozenset[str]]:
    """Return the default factories by field name, the names of the required fields, and the names of all fields."""
    all_ = {field_.name: field_ for field_ in fields(kind)}
    factories = {name: field_.default_factory for name, field_ in all_.items() if callable(field_.default_factory)}
    constants = {name for name, field_ in all_.items() if field_.default is not MISSING}
    return factories, frozenset(all_.keys() - factories.keys() - constants), frozenset(all_)


@dataclass(frozen=True, kw_only=True)
class StatedMemory:
    """Fields of a memory that are stored as they were sent, apart from secrets that scrubbing removes.

    A field without a description below has the meaning of the API's field of this name; None if it was not sent.

    Attributes:
        importance: 0..1.
        decay_rate: 0..10 per day; None uses the rate of the type.
        speaker, role: Name of the speaker in a conversation, and role: user, assistant, tool or system; or None.
        namespace: Path of the memory. If the first part is `memories`, the second is the user.
        source_ids: Ids of the memories that this one was derived from; they may no longer exist.
        parent_id: Id of a memory of the same user; None if it has no parent.
        valid_to: Unix milliseconds until which the statement is true; None is no limit.
        expires_at: Unix milliseconds; None leaves expiry to the type.
        zone: Privacy zone: SENSITIVE, PERSONAL or PROFESSIONAL; None if the memory is not encrypted.
        run_id: Id of the distillation or consolidation that created it; None if a caller stored it.
        conversation_id: For a turn stored with other turns: id of the distillation of that conversation. Else None.
        undistilled: For the last turn of a conversation: ids of all its turns, until a model has processed them.
        pinned: True if cleanups never remove it.
        is_working: True if it occupies a slot of its session's working memory.
    """

    user_id: str
    content: str
    importance: float = 0.5
    decay_rate: float | None = None
    session_id: str | None = None
    source: str | None = None
    speaker: str | None = None
    role: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    subject: str | None = None
    status_value: str | None = None
    category: str | None = None
    event_type: str | None = None
    context: str | Mapping[str, Any] | None = None
    domain: str | None = None
    source_ids: tuple[str, ...] = ()
    parent_id: str | None = None
    namespace: tuple[str, ...] = ()
    valid_to: int | None = None
    expires_at: int | None = None
    pinned: bool = False
    is_working: bool = False
    zone: str | None = None
    run_id: str | None = None
    conversation_id: str | None = None
    undistilled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryRecord(StatedMemory):
    """One stored memory, without its vector.

    Attributes:
        confidence: 0..1; None if neither the author nor the type gives one.
        author: Author named in the request, else the caller that stored it, else None. Not part of the identity.
        observed_by: Authors that stored the same statement, the first author included; at most 20.
        observation_count: Number of `observed_by`; 1 if no author was named.
        created_at, updated_at, last_accessed_at, superseded_at: Unix milliseconds. None: never accessed or superseded.
        session_used_at: Last use of the session, if the type ends with its session. Unix milliseconds, never in the
            future. None for any other type.
        stored_at: Time at which the write of the content was sent, Unix milliseconds; None for memories older than this
            field.
        changed_at: Time of the last edit by a caller, Unix milliseconds; None if never edited.
        valid_from: Unix milliseconds from which the statement is true; None is no limit.
        rev: Revision, from 1; each write to the point raises it, except of `UNREVISED_KEYS`.
        supersedes_id, supersedes_ids: For a merged memory the first and all of its predecessors. For any other version
            the predecessor, None if there is none, and ().
        superseded_by_id: Id of the next version; None for a head.
        update_count: Number of earlier versions since a model last read the chain, including those that a cleanup
            removed.
        pending: True while the memory is not yet linked into its chain; reads never return it.
        identity_id: Id of the root of the identity; None if the type has no identity or the memory lacks the field.
        lookup_ids: Ids that later writes search for: of the identity, the content and the idempotency key.
        request_id: Identifies the write that created it; derived from the idempotency key if there was one. None
            without `lookup_ids`.
        content_hash: See `hash_content`.
        entities: Its owner, its author, and the names in its text; empty if it has a zone.
        request_hash: Hash of the request that had an idempotency key; None without a key.
        connections: Related memories of the same user, each as `id`, `description` and `run`.
        consolidated: True if a consolidation has read or created it.
        item_version: Version number of an item, from 1; None for other memories.
        locked: True if it was not decrypted, mostly because its zone key is deleted or unavailable. The content and all
            other encrypted fields are empty.
        etag: Entity tag (`rules/preconditions.py`), not stored; None if it was not computed.
    """

    id: str
    agent_id: str
    type: str
    created_at: int
    updated_at: int
    stored_at: int | None = None
    changed_at: int | None = None
    session_used_at: int | None = None
    rev: int = 1
    confidence: float | None = None
    author: str | None = None
    knowledge_category: str | None = None
    observed_by: tuple[str, ...] = ()
    observation_count: int = 1
    valid_from: int | None = None
    access_count: int = 0
    last_accessed_at: int | None = None
    supersedes_id: str | None = None
    supersedes_ids: tuple[str, ...] = ()
    superseded_by_id: str | None = None
    superseded_at: int | None = None
    update_count: int = 0
    pending: bool = False
    identity_id: str | None = None
    lookup_ids: tuple[str, ...] = ()
    request_id: str | None = None
    content_hash: str = ""
    request_hash: str | None = None
    entities: tuple[Entity, ...] = ()
    connections: tuple[Mapping[str, str], ...] = ()
    consolidated: bool = False
    item_version: int | None = None
    locked: bool = False
    etag: str | None = field(default=None, compare=False)

    @property
    def last_changed_at(self) -> int:
        """Time of the last write or edit by a caller, Unix milliseconds. Access counts and links do not change it."""
        return self.changed_at or self.stored_at or self.created_at


ATTRIBUTES_BY_API_NAME = {"supersedes": "supersedes_id", "superseded_by": "superseded_by_id", "version": "item_version"}
"""Name in the API -> attribute of `MemoryRecord`, where they differ."""

_STORED = [field_.name for field_ in fields(MemoryRecord) if field_.name not in ("locked", "etag")]
PAYLOAD_KEYS = {name: to_camel(name) for name in _STORED} | {"is_working": "working", "run_id": RUN_KEY}
"""Attribute of `MemoryRecord` -> payload key."""
_read_stored = attrgetter(*PAYLOAD_KEYS)
_ATTRIBUTES = {key: attribute for attribute, key in PAYLOAD_KEYS.items()}

TOMBSTONE_KEY = "deletedAt"
"""Time of the deletion. A point with this key is a tombstone: calls that read memories never return it. Unless
another tool wrote it, it has no content and no vector. Points with facts about a user have the key with the value 0."""

_TOMBSTONE_KEYS = ("id", "agentId", "userId", "type", "requestId", "identityId", "writeMarks", *LINK_KEYS)

ORDER_KEY, WINDOW_KEY, WINDOW_DUE_KEY = "sessionOrder", "windowIds", "windowDue"
"""Keyword text of a memory in a session: its sort position, the ids of the neighbours whose contents the text includes,
and whether later texts need an update; see `memories/session_keywords.py`."""

ACCESS_MARKS_KEY = "accessMarks"
"""Marks of flushes of access counts, by the last 16 API processes; see `memories/access_counts.py`."""

WORKING_USED_KEY = "usedAt"
"""Sort key of a working memory, by last use within its session; see `memories/working_memory.py`."""

LOGGED_KEY = "loggedAt"
"""Position in the change log: time of the last change that readers can see, Unix milliseconds. The request that makes
the change sets it; access counts do not. See `memories/change_log.py`."""

EXPIRED_KEY = "expired"
"""Set on a tombstone of a cleanup, as opposed to one of a deletion."""

EDIT_MARK_KEY = "editMark"
"""Id of the last edit in place. Reading it shows whether a conditional write took effect, which Qdrant does not report.
"""

UPDATES_KEY = "updateCount"

LONG_CHAIN = 20
"""Number of versions from which a model combines a chain into one version."""

GIVES_WAY_KEY = "givesWay"
"""Set on a version that a model derived from earlier ones: time of the last edit of the head that it follows, 0 if
none. The version is abandoned if that head was edited or superseded in the meantime, even if it has an identity."""

# Keys that are omitted if false or 0, as for nearly all memories.
_SELDOM = ("pinned", "working", CONSOLIDATED_KEY, UPDATES_KEY)
LIST_ATTRIBUTES = frozenset(field_.name for field_ in fields(MemoryRecord) if field_.default == ())

NAMESPACE_PATHS_KEY = "namespacePaths"
"""Every prefix of the namespace as one string, because Qdrant cannot match the order of list values."""

ITEM_NAMESPACE_KEY = "itemNamespace"
"""Whole namespace of an item as one string. Only items have this key. See `memories/rules/item_rules.py`."""

STORED_KEY = "storedAt"
"""Time at which the content was sent. Writes of links or counts keep it."""

CHANGED_KEY = "changedAt"
"""Time of the last edit in place by a caller. Links and counts raise `updatedAt` only."""

ERASURE_KEY, RECEIPT_KEY = "erasureId", "receipt"
"""Id of the erasure on a tombstone of `forget`, and the contents of the receipt point: `lifecycle/rules/erasure.py`."""

ERASED_ID_KEY = "erasedId"
"""Id of the erased memory, on the trace point that is written when another memory replaces the tombstone."""

ENTITY_SHEET_KEY = "entitySheet"
"""Set on the point with a scope's entity data, which is not a memory: `entities/rules/sheet.py`."""

PROFILE_KEY = "userProfile"
"""Set on the point with a user's name, which is not a memory: `memories/rules/profile.py`."""

VERSIONS_KEY, VERSIONS_SINCE_KEY = "itemVersions", "itemVersionsSince"
"""Earlier versions of an item, newest first, and the time at which the oldest of them was stored."""

WRITE_MARKS_KEY, REQUEST_MARKS_KEY, REQUEST_ETAGS_KEY = "writeMarks", "requestMarks", "requestEtags"
"""Ids of the latest writes of an item or memory, marks of the latest requests with an idempotency key, and the entity
tags that PUTs among these led to, as `key:etag`; see `memories/item_store.py` and `rules/preconditions.py`."""

PUBLIC_PAYLOAD: Mapping[str, Any] = {
    "exclude": [
        *(VERSIONS_KEY, ACCESS_MARKS_KEY, WRITE_MARKS_KEY, REQUEST_MARKS_KEY, REQUEST_ETAGS_KEY, EDIT_MARK_KEY),
        *("lookupIds", "requestId", "requestHash", "contentHash", WINDOW_KEY, WINDOW_DUE_KEY, LOGGED_KEY),
    ]
}
"""Payload selector for responses: excludes the keys that only writers need."""

STATED_END_KEY = "statedValidTo"
"""Original `validTo` of a memory, before a supersession shortened it. It is restored if the memory is a head again."""

DISTIL_DUE_KEY, DISTIL_TRIES_KEY = "distilDue", "distilTries"
"""`distilDue`: True until a model has processed the conversation of a turn with `undistilled`, or the versions of a
memory. `distilTries`: Number of model outputs for it that could not be used."""

DISTIL_BY_KEY, DISTIL_UNTIL_KEY = "distilBy", "distilUntil"
"""Lease of a distillation run: its id, and its end in Unix milliseconds; see `distillation/runs.py`."""

DISTIL_END_KEY = "distilEnd"
"""Set on a turn if a session ended right after it and was queued for a model; see `distillation/session_end.py`."""

IMPORTED_SUPERSEDED_AT_KEY = "toldSupersededAt"
"""`supersededAt` of an imported version, stored until its successor is imported."""


def namespace_paths(namespace: Sequence[str]) -> list[str]:
    """Return each prefix of a namespace as one string. Parts have no control characters, so strings are unique."""
    return ["\x1f".join(namespace[:length]) for length in range(1, len(namespace) + 1)]


def hash_content(content: str, secret: str = "") -> str:
    """Return the first 16 hex digits of the content's SHA-256, or of its HMAC-SHA256 if there is a secret.

    Args:
        secret: Secret of the memory's zone; '' for none. Only its holders can test whether a guessed content has this
            hash.
    """
    if secret:
        return hmac.new(secret.encode(), content.encode(), hashlib.sha256).hexdigest()[:16]
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def window_mark(payload: Mapping[str, Any]) -> Payload:
    """Return the payload that marks later keyword texts as stale; empty if the memory has no position in a session."""
    return {WINDOW_DUE_KEY: True} if ORDER_KEY in payload else {}


def is_emptied(payload: Mapping[str, Any]) -> bool:
    """Return whether a point is a tombstone without content. Tombstones written by other tools may keep their text."""
    return TOMBSTONE_KEY in payload and "content" not in payload


def tombstone_of(payload: Mapping[str, Any], now_ms: int) -> Payload:
    """Return the tombstone of a memory, without content. It is `pending` if it has links, until they are repaired."""
    base = {key: payload[key] for key in _TOMBSTONE_KEYS if payload.get(key) is not None}
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: now_ms, LOGGED_KEY: now_ms}
    marks = {"rev": payload["rev"] + 1, **times, **window_mark(payload)}
    # Keep the ids of an item's requests, without the hashes of their content.
    requests = [f"{mark.partition(':')[0]}:" for mark in payload.get(REQUEST_MARKS_KEY) or ()]
    request_marks = {REQUEST_MARKS_KEY: requests} if requests else {}
    return base | marks | request_marks | {"pending": not base.keys().isdisjoint(LINK_KEYS)}


def root_tombstone(identity_id: str, payload: Mapping[str, Any], now_ms: int) -> Payload:
    """Return the tombstone to write as the root of an identity, if there is no point with the root's id any more.

    Args:
        payload: Payload of another version of the identity.
    """
    base = {key: payload[key] for key in ("agentId", "userId", "type")}
    return base | {"id": identity_id, "rev": 1, "updatedAt": now_ms, TOMBSTONE_KEY: now_ms, "pending": False}


def erasure_trace(memory_id: str, erasure_id: str, at_ms: int, *, now_ms: int) -> Payload:
    """Return the payload of the trace point for an erasure whose tombstone another memory replaces.

    Args:
        at_ms: Time of the erasure, Unix milliseconds.
        now_ms: Time of the replacement, as `updatedAt`: a running rebuild copies points by it.
    """
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: at_ms}
    marks = {"id": trace_id(memory_id, erasure_id), "rev": 1, **times, "pending": False}
    return marks | {ERASURE_KEY: erasure_id, ERASED_ID_KEY: memory_id}


def observation_count(observed_by: Sequence[str]) -> int:
    """Return the observation count: the number of authors, at least 1."""
    return max(1, len(observed_by))


def is_long_chain(update_count: int) -> bool:
    """Return whether a version is at least the 20th of its chain since a model last read the chain."""
    return update_count + 1 >= LONG_CHAIN


def payload_of(record: MemoryRecord) -> Payload:
    """Return the payload of a memory's point. Omits None and empty values: a formula fails on an explicit null."""
    values = zip(PAYLOAD_KEYS.values(), _read_stored(record), strict=True)
    payload = {key: value for key, value in values if value or (value is not None and value not in ((), {}))}
    for key in _SELDOM:
        if not payload[key]:
            del payload[key]
    if record.entities:
        payload[ENTITIES_KEY] = entities_to_payload(record.entities)
    paths = {NAMESPACE_PATHS_KEY: namespace_paths(record.namespace)} if record.namespace else {}
    due = (
        {DISTIL_DUE_KEY: True} if record.undistilled or (is_long_chain(record.update_count) and not record.zone) else {}
    )
    return {key: list(value) if isinstance(value, tuple) else value for key, value in payload.items()} | paths | due


def record_of(payload: Mapping[str, Any]) -> MemoryRecord:
    """Return the memory stored in a payload. It is `locked` if the payload was not decrypted."""
    # Iterate over the keys present, which are fewer than all keys: every search result passes through here.
    values = {_ATTRIBUTES[key]: value for key, value in payload.items() if key in _ATTRIBUTES and value is not None}
    for name in values.keys() & LIST_ATTRIBUTES:
        values[name] = tuple(values[name])
    if ENTITIES_KEY in payload:
        values["entities"] = entities_from_payload(payload[ENTITIES_KEY])
    values["observation_count"] = observation_count(values.get("observed_by", ()))
    return build_fast(MemoryRecord, {"content": "", "locked": True} | values if is_locked(payload) else values)
