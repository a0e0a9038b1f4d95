"""What a memory is, inside: one frozen value, and how it lies on a Qdrant point.

Times are Unix milliseconds. Payload keys are camelCase and follow the reference design's payload table. Every point
carries `rev` (raised by each write) and `updatedAt`, so that copies and restores can tell which version is newer.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
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
"""Which consolidation made a memory, which noted something on one, and which gave one its category."""

IMPORTANCE_LEVELS = {"low": 0.25, "medium": 0.5, "high": 0.75, "critical": 1.0}
"""The importance that a level stands for."""


def filled(kind: type[Filled], values: Mapping[str, Any]) -> Filled:
    """An object of a frozen class without slots, as its constructor makes it.

    The constructor sets field by field; of dozens of fields that is a third of what `record_of` takes.

    Raises:
        TypeError: a field is missing, or none of the class.
    """
    factories, required, known = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    if not required <= values.keys() <= known:
        return kind(**values)
    one = object.__new__(kind)
    # What is missing is found where the class itself has it: a default that is a constant is its attribute.
    one.__dict__.update(values)
    for name, make in factories.items():
        if name not in values:
            one.__dict__[name] = make()
    return one


@cache
def _fields_of(kind: type[Any]) -> tuple[Mapping[str, Callable[[], Any]], frozenset[str], frozenset[str]]:
    """What makes the defaults of a class that are no constants, its fields without a default, and all its fields."""
    all_ = {field_.name: field_ for field_ in fields(kind)}
    factories = {name: field_.default_factory for name, field_ in all_.items() if callable(field_.default_factory)}
    constants = {name for name, field_ in all_.items() if field_.default is not MISSING}
    return factories, frozenset(all_.keys() - factories.keys() - constants), frozenset(all_)


@dataclass(frozen=True, kw_only=True)
class StatedMemory:
    """What a memory says that is stored as it was given.

    Attributes:
        importance: 0..1.
        decay_rate: 0..10 a day; None is that of the type.
        speaker, role: who said it in a conversation, and what that one is: user, assistant, tool or system.
        namespace: where its first part is `memories`, the second is the user.
        source_ids: memories that it was made of; they need not be there.
        parent_id: a memory of the same user.
        valid_to: Unix milliseconds until which it is true; None is open.
        expires_at: Unix milliseconds.
        zone: how it is sealed: SENSITIVE, PERSONAL or PROFESSIONAL; None is not at all.
        run_id: of the distillation or consolidation that made it; None of what somebody stored.
        conversation_id: of a turn that came with others: of the distillation that is made of them.
        undistilled: of the last turn of a conversation: the ids of all its turns, while no model has read them.
        pinned: never cleaned up.
        is_working: it is for a place of its session's working memory.
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
        confidence: 0..1 or None when the author gave none.
        author: who stored it; never part of what identifies a memory.
        observed_by: whose word it is, the first author included.
        observation_count: how many said it, all of `observed_by`; 1 is its first author, or nobody.
        created_at, updated_at, last_accessed_at, superseded_at: Unix milliseconds.
        session_used_at: of what lasts a session: when that was last used, Unix milliseconds, never in the future.
        stored_at: when what it says was sent, Unix milliseconds; None of a memory from before that was noted.
        changed_at: when somebody changed it since, Unix milliseconds; None: nobody has.
        valid_from: Unix milliseconds from which on it is true; None is open.
        rev: starts at 1, raised by each write to the point.
        supersedes_id, supersedes_ids: of what it was merged from, the first and all; of other versions the one before
            and none.
        update_count: how many versions came before it since a model last read the chain, those included that a cleanup
            took out.
        pending: written but not yet joined to its chain; never returned.
        identity_id: of the first memory of its identity, None where its type has none or it lacks the field.
        lookup_ids: what it is found by when another is written: its identity, its content, its idempotency key.
        request_id: tells the write that made it from every other; of its idempotency key where it came with one.
        content_hash: see `hash_content`.
        entities: the names that it speaks of; none where it has a zone.
        request_hash: of the request that an idempotency key came with, None without a key.
        connections: memories of its user that it belongs together with, each as `id`, `description` and `run`.
        consolidated: a consolidation has read it, or made it.
        item_version: of an item: number of its version, from 1; None of other memories.
        locked: its key is gone, or away: the content is empty here, and so is all that is sealed with it.
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

    @property
    def last_changed_at(self) -> int:
        """When somebody stored or changed it last, Unix milliseconds; counts of use and links change nothing."""
        return self.changed_at or self.stored_at or self.created_at


RENAMED = {"supersedes": "supersedes_id", "superseded_by": "superseded_by_id", "version": "item_version"}
"""What is called otherwise outside -> attribute of `MemoryRecord`."""

_STORED = [field_.name for field_ in fields(MemoryRecord) if field_.name != "locked"]
PAYLOAD_KEYS = {name: to_camel(name) for name in _STORED} | {"is_working": "working", "run_id": RUN_KEY}
"""Attribute of `MemoryRecord` -> key on the point."""
_ATTRIBUTES = {key: attribute for attribute, key in PAYLOAD_KEYS.items()}

TOMBSTONE_KEY = "deletedAt"
"""A point that carries it is a tombstone: no content, no vector, never returned."""

_TOMBSTONE_KEYS = ("id", "agentId", "userId", "type", "requestId", "identityId", "writeMarks", *LINK_KEYS)

ORDER_KEY, WINDOW_KEY, DUE_KEY = "sessionOrder", "windowIds", "windowDue"
"""Of a memory with keyword text: its place in its session, whose contents its text holds besides its own, and whether
the texts after it have to be looked at; see `memories/session_keywords.py`."""

ACCESS_MARKS_KEY = "accessMarks"
"""Which flush of each API process counted last; see `memories/access_counts.py`."""


USED_KEY = "usedAt"
"""Of a working memory: what orders those of its session by use; see `memories/working.py`."""

LOGGED_KEY = "loggedAt"
"""When what readers see of a memory changed last, Unix milliseconds: its place in the change log, which counts of
accesses leave as it is. Written by whoever makes the change, in the same request; see `memories/change_log.py`."""

EXPIRED_KEY = "expired"
"""Of a tombstone that a cleanup left, and nobody's deletion."""

EDIT_KEY = "editMark"
"""Which change in place was written last: the engine does not tell whether a conditional write took effect."""

UPDATES_KEY = "updateCount"

LONG_CHAIN = 20
"""So many versions of one memory say that it changes all the time: a model makes one of them."""

GIVES_WAY_KEY = "givesWay"
"""Of a version that a model made of those before: when the head that it follows was changed last, 0 for never. Where
that head was changed or superseded since, the version is given up, also if it has an identity."""

# Left out where they are false or 0, as they are for nearly all.
_SELDOM = ("pinned", "working", CONSOLIDATED_KEY, UPDATES_KEY)
LISTS = frozenset(field_.name for field_ in fields(MemoryRecord) if field_.default == ())

NAMESPACE_PATHS_KEY = "namespacePaths"
"""Every prefix of the namespace as one word, because the engine knows no order among a list's values."""

ITEM_NAMESPACE_KEY = "itemNamespace"
"""Of an item, and of nothing else: its whole namespace as one word; see `memories/rules/items.py`."""

STORED_KEY = "storedAt"
"""When what a memory says was sent; what changes beside it (links, counts) leaves that as it is."""

CHANGED_KEY = "changedAt"
"""When somebody changed a memory in place; links and counts, which raise `updatedAt`, leave that as it is."""


ERASURE_KEY, RECEIPT_KEY = "erasureId", "receipt"
"""Of a tombstone that `forget` left, and of the point that says what it erased: `lifecycle/rules/erasure.py`."""

ERASED_ID_KEY = "erasedId"
"""Of the point that keeps the trace of an erasure whose tombstone another memory has replaced: the id of both."""

SHEET_KEY = "entitySheet"
"""Of the point that bears what no memory tells of a scope's entities, and and is none: `entities/rules/sheet.py`."""

PROFILE_KEY = "userProfile"
"""Of the point with a user's name, which is no memory: `memories/rules/profile.py`."""

VERSIONS_KEY, VERSIONS_SINCE_KEY = "itemVersions", "itemVersionsSince"
"""Of an item: what puts have replaced, the newest first, and when the oldest of that was stored."""

WRITE_MARKS_KEY, REQUEST_MARKS_KEY = "writeMarks", "requestMarks"
"""Which writes of an item came last, and which requests with an idempotency key; see `memories/items.py`."""

SHOWN: Mapping[str, Any] = {
    "exclude": [
        *(VERSIONS_KEY, ACCESS_MARKS_KEY, WRITE_MARKS_KEY, REQUEST_MARKS_KEY, EDIT_KEY),
        *("lookupIds", "requestId", "requestHash", "contentHash", WINDOW_KEY, DUE_KEY, LOGGED_KEY),
    ]
}
"""What is read of points for answers: not what only writers need."""

STATED_END_KEY = "statedValidTo"
"""The `validTo` that a supersession shortened, for the day when the memory answers again."""

DISTIL_DUE_KEY, DISTIL_TRIES_KEY = "distilDue", "distilTries"
"""That a model is to read the conversation of a turn with `undistilled`, of a memory without its versions; and how many
answers could not be used."""

DISTIL_BY_KEY, DISTIL_UNTIL_KEY = "distilBy", "distilUntil"
"""Which run is at that, and until when, Unix milliseconds; see `distillation/runs.py`."""

DISTIL_END_KEY = "distilEnd"
"""Of a turn: that a session ended right after it, and was offered to a model; see `distillation/session_end.py`."""

TOLD_AT_KEY = "toldSupersededAt"
"""Of an imported version that answers until the next one comes: the `supersededAt` that its line told."""


def namespace_paths(namespace: Sequence[str]) -> list[str]:
    """Each prefix of a namespace as one word: parts hold no control characters, so no two share a word."""
    return ["\x1f".join(namespace[:length]) for length in range(1, len(namespace) + 1)]


def hash_content(content: str, secret: str = "") -> str:
    """The first 16 hex digits of the content's SHA-256; with a secret, of its HMAC-SHA256.

    Args:
        secret: of a memory with a zone: nobody without it can try which content has this hash.
    """
    if secret:
        return hmac.new(secret.encode(), content.encode(), hashlib.sha256).hexdigest()[:16]
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def window_mark(payload: Mapping[str, Any]) -> Payload:
    """What says that the keyword texts after a memory have to be looked at; only those of a session are."""
    return {DUE_KEY: True} if ORDER_KEY in payload else {}


def is_emptied(payload: Mapping[str, Any]) -> bool:
    """Whether a point is a tombstone, which has no vectors; one that others deleted in their way has its text."""
    return TOMBSTONE_KEY in payload and "content" not in payload


def tombstone_of(payload: Mapping[str, Any], now_ms: int) -> Payload:
    """What a deleted memory leaves: nothing of its content; `pending` until its chain is closed over it."""
    kept = {key: payload[key] for key in _TOMBSTONE_KEYS if payload.get(key) is not None}
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: now_ms, LOGGED_KEY: now_ms}
    marks = {"rev": payload["rev"] + 1, **times, **window_mark(payload)}
    # Which requests an item has seen, without what tells of their content.
    requests = [f"{mark.partition(':')[0]}:" for mark in payload.get(REQUEST_MARKS_KEY) or ()]
    seen = {REQUEST_MARKS_KEY: requests} if requests else {}
    return kept | marks | seen | {"pending": not kept.keys().isdisjoint(LINK_KEYS)}


def root_of(identity_id: str, payload: Mapping[str, Any], now_ms: int) -> Payload:
    """A tombstone that the first memory of an identity can follow, where its own point is gone."""
    kept = {key: payload[key] for key in ("agentId", "userId", "type")}
    return kept | {"id": identity_id, "rev": 1, "updatedAt": now_ms, TOMBSTONE_KEY: now_ms, "pending": False}


def erasure_trace(memory_id: str, erasure_id: str, at_ms: int, *, now_ms: int) -> Payload:
    """The payload of the point that keeps the trace of an erasure whose tombstone another memory has replaced.

    Args:
        at_ms: when the memory was erased, Unix milliseconds.
        now_ms: when it is replaced; a rebuild carries over what changes after it began.
    """
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: at_ms}
    marks = {"id": trace_id(memory_id, erasure_id), "rev": 1, **times, "pending": False}
    return marks | {ERASURE_KEY: erasure_id, ERASED_ID_KEY: memory_id}


def count_of(observed_by: Sequence[str]) -> int:
    """How many said a memory; nobody is named where its one author named nobody."""
    return max(1, len(observed_by))


def is_long(update_count: int) -> bool:
    """Whether a version is the 20th of a memory since a model last read its chain, or a later one."""
    return update_count + 1 >= LONG_CHAIN


def payload_of(record: MemoryRecord) -> Payload:
    """The point's payload; what is None or empty is left out, because a formula fails on an explicit null."""
    values = ((key, getattr(record, attribute)) for attribute, key in PAYLOAD_KEYS.items())
    kept = {key: value for key, value in values if value is not None and value not in ((), {})}
    for key in _SELDOM:
        if not kept[key]:
            del kept[key]
    if record.entities:
        kept[ENTITIES_KEY] = entities_to_payload(record.entities)
    paths = {NAMESPACE_PATHS_KEY: namespace_paths(record.namespace)} if record.namespace else {}
    due = {DISTIL_DUE_KEY: True} if record.undistilled or (is_long(record.update_count) and not record.zone) else {}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()} | paths | due


def record_of(payload: Mapping[str, Any]) -> MemoryRecord:
    """The memory that a point's payload holds."""
    # By what is there, which is less than what there might be: every result of a search goes through here.
    values = {_ATTRIBUTES[key]: value for key, value in payload.items() if key in _ATTRIBUTES and value is not None}
    for name in values.keys() & LISTS:
        values[name] = tuple(values[name])
    if ENTITIES_KEY in payload:
        values["entities"] = entities_from_payload(payload[ENTITIES_KEY])
    values["observation_count"] = count_of(values.get("observed_by", ()))
    return filled(MemoryRecord, {"content": "", "locked": True} | values if is_locked(payload) else values)
