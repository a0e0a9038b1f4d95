"""Items: memories that lie under a key of a namespace; whose they are, how long they may be, and their ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.rebuild_costs import CHARACTERS_A_TOKEN
from agentmemory_operator.errors import FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import Condition, Filter, Selection, both, equals, visible
from agentmemory_operator.memories.rules.ids import item_id
from agentmemory_operator.memories.rules.record import (
    ITEM_NAMESPACE_KEY,
    TOMBSTONE_KEY,
    WRITE_MARKS_KEY,
    Payload,
    namespace_paths,
    tombstone_of,
)
from agentmemory_operator.spec.access import GLOBAL, GROUP_PREFIX, is_well_formed
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.memory_types import MemoryType

USER_NAMESPACE = "memories"
"""A namespace that begins with it is the user's whom the next part names."""

SHARED_NAMESPACE = "shared"
"""A namespace that begins with it is the scope's that the next part names: `global`, or else the group of that name.
If a user is named beside it, the namespace is that user's."""

PREFERRED_TYPES = ("item", "fact", "semantic")
"""What type an item is: the first of these that the agent takes, because they last; else the agent's first type."""

KEPT_MARKS = 16
"""Writes that a point remembers, and requests with an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an item lies.

    Attributes:
        namespace: at least two parts.
        zone: how it is sealed; a key of each zone is another item, because nobody else may try what its id stands for.
    """

    user_id: str
    namespace: tuple[str, ...]
    key: str
    zone: str | None = None

    def id_in(self, scope: str) -> str:
        """The one id that the item has in an agent's collection.

        Args:
            scope: what the ids of the agent, or of its zone, are made with.
        """
        return item_id(scope, self.user_id, self.namespace, self.key)


def named_owner(namespace: Sequence[str], *, has_user: bool) -> str | None:
    """Who a namespace itself says that it belongs to; None: it does not say.

    It may be no user or scope that there can be: whoever reads the request says so.

    Args:
        has_user: a user is named beside it, whose shared namespaces are that user's.
    """
    match tuple(namespace[:2]):
        case (first, user) if first == USER_NAMESPACE:
            return user
        case (first, scope) if first == SHARED_NAMESPACE and not has_user:
            return GLOBAL if scope == GLOBAL else f"{GROUP_PREFIX}{scope}"
        case _:
            return None


def owner_of(namespace: tuple[str, ...], user_id: str | None) -> str:
    """Whose a namespace is.

    Raises:
        RequestInvalid: it names nobody, and nobody is named beside it; or it names a scope that is none.
        NotFound: it names another user than the one beside it.
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
    """The scope that owns a namespace beside which no user is named."""
    owner = named_owner(namespace, has_user=False)
    if owner is None:
        way_out = (
            f"required unless the namespace starts with {USER_NAMESPACE!r} and a user, or with"
            f" {SHARED_NAMESPACE!r} and {GLOBAL!r} or a group"
        )
        raise RequestInvalid([FieldError("user_id", way_out)])
    if not is_well_formed(owner):
        message = f"{namespace[1]!r} is not a group: use at most 63 letters, digits, dots, _ and -, or set user_id"
        raise RequestInvalid([FieldError("namespace[1]", message)])
    return owner


def check_content(content: str, tokens_max: int | None) -> list[FieldError]:
    """An error where the content has more tokens than the limit; None is any number."""
    tokens = -(-len(content) // CHARACTERS_A_TOKEN)
    if tokens_max is None or tokens <= tokens_max:
        return []
    message = (
        f"has {tokens} tokens ({CHARACTERS_A_TOKEN} characters each), more than the limit of {tokens_max}: split it"
    )
    return [FieldError("content", message)]


def item_type(ranking: Ranking) -> str:
    """The type of an agent's items."""
    names = [type_.name for type_ in ranking.types]
    return next((name for name in PREFERRED_TYPES if name in names or not names), ranking.default_type)


def namespace_word(namespace: tuple[str, ...]) -> str:
    """A namespace as one word: no two share one."""
    return namespace_paths(namespace)[-1]


def items_below(user_id: str, prefix: tuple[str, ...], now_ms: int, types: Iterable[MemoryType]) -> Filter:
    """The filter of a user's items in the namespaces that begin with a prefix; () is all of them.

    Args:
        types: of the object; some have a time to live.
    """
    is_item: Condition = {"must_not": [{"is_empty": {"key": ITEM_NAMESPACE_KEY}}]}
    return both(visible(Selection(user_id=user_id, namespace=prefix), now_ms, types), is_item)


def items_in(user_id: str, namespace: tuple[str, ...], now_ms: int, types: Iterable[MemoryType]) -> Filter:
    """The filter of a user's items of exactly one namespace."""
    below = items_below(user_id, namespace, now_ms, types)
    return both(below, equals(ITEM_NAMESPACE_KEY, namespace_word(namespace)))


def marked(row: Mapping[str, Any] | None, mark: str) -> list[str]:
    """The marks of a point after one more write."""
    return [*marks_of(row), mark][-KEPT_MARKS:]


def marks_of(row: Mapping[str, Any] | None, key: str = WRITE_MARKS_KEY) -> list[str]:
    """The marks that a point bears."""
    return list((row or {}).get(key) or ())


def tells_all_since(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether a point bears the mark of every write since it was read before: so the absence of one is proof."""
    known, marks = marks_of(before), marks_of(after)
    return len(marks) < KEPT_MARKS or (bool(known) and known[-1] in marks)


def is_live(row: Mapping[str, Any], types: Sequence[MemoryType], now_ms: int) -> bool:
    """Whether a point is an item that answers."""
    return TOMBSTONE_KEY not in row and not is_expired(row, types, now_ms)


def buried(row: Mapping[str, Any], mark: str, now_ms: int) -> Payload:
    """What a deleted item leaves: nothing of its content; the marks say which writes came before."""
    return tombstone_of(row, now_ms) | {WRITE_MARKS_KEY: marked(row, mark)}
