"""Rules of items, which are memories under a key of a namespace: owner, type, size limit, id, filters, write marks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.rebuild_costs import CHARS_PER_TOKEN
from agentmemory_operator.errors import FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import Condition, Filter, Selection, equals, narrow, visible_filter
from agentmemory_operator.memories.rules.ids import item_id
from agentmemory_operator.memories.rules.record import (
    ITEM_NAMESPACE_KEY,
    REQUEST_MARKS_KEY,
    TOMBSTONE_KEY,
    WRITE_MARKS_KEY,
    Payload,
    namespace_paths,
    tombstone_of,
)
from agentmemory_operator.spec.caller_rights import GLOBAL, GROUP_PREFIX, is_well_formed
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.memory_types import MemoryType

USER_NAMESPACE = "memories"
"""First part of a namespace that belongs to the user in its second part."""

SHARED_NAMESPACE = "shared"
"""First part of a namespace that belongs to a shared scope: `global`, or the group in its second part.

If the request also has a user, the namespace belongs to that user instead.
"""

PREFERRED_TYPES = ("item", "fact", "semantic")
"""Type of an item: the first of these that the agent has, else its default type. In presets, these do not expire.

An agent without types uses the first.
"""

MAX_WRITE_MARKS = 16
"""Number of write marks, and of request marks, that a point keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of an item.

    Attributes:
        user_id: User or shared scope that owns the item.
        namespace: Parts, at least two.
        zone: Privacy zone; None if the item is not encrypted. The same key in another zone is another item, because ids
            in a zone are derived with a secret.
    """

    user_id: str
    namespace: tuple[str, ...]
    key: str
    zone: str | None = None

    def id_in(self, scope: str) -> str:
        """Return the id of the item in an agent's collection.

        Args:
            scope: Scope from which the ids of the agent, or of its zone, are derived.
        """
        return item_id(scope, self.user_id, self.namespace, self.key)


def owner_in_namespace(namespace: Sequence[str], *, has_user: bool) -> str | None:
    """Return the owner that a namespace names, or None. The caller checks that it is a valid user or scope.

    Args:
        has_user: True if the request has a user. A shared namespace then belongs to that user, and names no owner.
    """
    match tuple(namespace[:2]):
        case (first, user) if first == USER_NAMESPACE:
            return user
        case (first, scope) if first == SHARED_NAMESPACE and not has_user:
            return GLOBAL if scope == GLOBAL else f"{GROUP_PREFIX}{scope}"
        case _:
            return None


def owner_of(namespace: tuple[str, ...], user_id: str | None) -> str:
    """Return the user or scope that owns a namespace.

    Raises:
        RequestInvalid: If neither the namespace nor `user_id` names an owner, or the namespace names an invalid scope.
        NotFound: If the namespace names another user than `user_id`.
    """
    if namespace[:1] != (USER_NAMESPACE,) or len(namespace) < 2:
        return user_id if user_id is not None else _shared_owner(namespace)
    if user_id not in (None, namespace[1]):
        raise NotFound(
            f"this user has no namespace {'/'.join(namespace)}: omit user_id, because the namespace names it"
        )
    if not is_well_formed(namespace[1]):
        raise RequestInvalid([FieldError("namespace[1]", f"{namespace[1]!r} is not a scope: use global or group:NAME")])
    return namespace[1]


def _shared_owner(namespace: tuple[str, ...]) -> str:
    """Return the scope that owns a namespace in a request without a user; raise RequestInvalid if it is not valid."""
    owner = owner_in_namespace(namespace, has_user=False)
    if owner is None:
        rule = (
            f"required unless the namespace starts with {USER_NAMESPACE!r} and a user, or with"
            f" {SHARED_NAMESPACE!r} and {GLOBAL!r} or a group"
        )
        raise RequestInvalid([FieldError("user_id", rule)])
    if not is_well_formed(owner):
        message = f"{namespace[1]!r} is not a group: use at most 63 letters, digits, dots, _ and -, or set user_id"
        raise RequestInvalid([FieldError("namespace[1]", message)])
    return owner


def find_length_errors(content: str, max_tokens: int | None) -> list[FieldError]:
    """Return an error if the content has more tokens, estimated by its length, than the limit; None is no limit."""
    tokens = -(-len(content) // CHARS_PER_TOKEN)
    if max_tokens is None or tokens <= max_tokens:
        return []
    message = f"has {tokens} tokens ({CHARS_PER_TOKEN} characters each), more than the limit of {max_tokens}: split it"
    return [FieldError("content", message)]


def item_type(ranking: Ranking) -> str:
    """Return the type of an agent's items, as `PREFERRED_TYPES` defines it."""
    names = [type_.name for type_ in ranking.types]
    return next((name for name in PREFERRED_TYPES if name in names or not names), ranking.default_type)


def namespace_key(namespace: tuple[str, ...]) -> str:
    """Return a namespace as one unique string."""
    return namespace_paths(namespace)[-1]


def prefix_filter(user_id: str, prefix: tuple[str, ...], now_ms: int, types: Iterable[MemoryType]) -> Filter:
    """Return the filter for a user's items in namespaces with this prefix; () matches all.

    Args:
        types: Types of the object, for their times to live.
    """
    is_item: Condition = {"must_not": [{"is_empty": {"key": ITEM_NAMESPACE_KEY}}]}
    return narrow(visible_filter(Selection(user_id=user_id, namespace=prefix), now_ms, types), is_item)


def namespace_filter(user_id: str, namespace: tuple[str, ...], now_ms: int, types: Iterable[MemoryType]) -> Filter:
    """Return the filter for a user's items in exactly this namespace."""
    prefix = prefix_filter(user_id, namespace, now_ms, types)
    return narrow(prefix, equals(ITEM_NAMESPACE_KEY, namespace_key(namespace)))


def append_mark(row: Mapping[str, Any] | None, mark: str) -> list[str]:
    """Return the write marks of a point after one more write: the last 16, oldest first."""
    return [*marks_of(row), mark][-MAX_WRITE_MARKS:]


def marks_of(row: Mapping[str, Any] | None, key: str = WRITE_MARKS_KEY) -> list[str]:
    """Return the marks of a point, oldest first; empty without a point."""
    return list((row or {}).get(key) or ())


def has_all_marks_since(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Return whether `after` has the marks of all writes since `before`. Then a missing mark proves a missing write."""
    marks_before, marks_after = marks_of(before), marks_of(after)
    return len(marks_after) < MAX_WRITE_MARKS or (bool(marks_before) and marks_before[-1] in marks_after)


def is_live(row: Mapping[str, Any], types: Sequence[MemoryType], now_ms: int) -> bool:
    """Return whether a point is neither a tombstone nor expired."""
    return TOMBSTONE_KEY not in row and not is_expired(row, types, now_ms)


def item_tombstone(row: Mapping[str, Any], mark: str, now_ms: int, *, request: str | None = None) -> Payload:
    """Return the tombstone of an item. It keeps the write marks, which show the writes before the deletion.

    Args:
        request: Request mark of the deletion; None without an idempotency key.
    """
    tombstone = tombstone_of(row, now_ms) | {WRITE_MARKS_KEY: append_mark(row, mark)}
    if request is None:
        return tombstone
    return tombstone | {REQUEST_MARKS_KEY: [*marks_of(tombstone, REQUEST_MARKS_KEY), request][-MAX_WRITE_MARKS:]}
