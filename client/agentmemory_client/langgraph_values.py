"""Convert between LangGraph's values, namespaces and items, and an agent's memories."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from langgraph.store.base import MatchCondition, SearchItem, get_text_at_path

from agentmemory_client.texts import is_visible
from agentmemory_client.values import Found, Memory

Namespace: TypeAlias = tuple[str, ...]
USER_ROOT, OWN_ROOT, METADATA = "memories", "langgraph", "langgraph"
MAX_TTL_MINUTES = 100 * 366 * 24 * 60


def to_paths(paths: str | Sequence[str]) -> tuple[str, ...]:
    """Return the paths to embed; one may be given as a text alone."""
    return (paths,) if isinstance(paths, str) else tuple(paths)


def has_user(namespace: Namespace) -> bool:
    """Return whether a namespace has the form `("memories", user, ...)`, which determines its user."""
    return len(namespace) > 1 and namespace[0] == USER_ROOT


def remove_own_root(namespace: Namespace) -> Namespace:
    """Return a namespace without the store's own prefix; unchanged if it does not begin with that prefix."""
    return namespace[1:] if namespace[:1] == (OWN_ROOT,) else namespace


def literal_prefix(path: Sequence[str]) -> Namespace:
    """Return the parts of a path before its first wildcard; all parts if it has none."""
    parts = tuple(path)
    return parts[: parts.index("*")] if "*" in parts else parts


def matches_condition(condition: MatchCondition, namespace: Namespace) -> bool:
    """Return whether a namespace begins or ends with the path of a condition, in which `*` matches any label."""
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    compared = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(expected in ("*", part) for expected, part in zip(path, compared, strict=True))


def text_to_embed(value: Mapping[str, Any], paths: Sequence[str]) -> str | None:
    """Return the texts of a value at the paths as one text to embed, or None if they have no visible character.

    An item has one vector. LangGraph's own stores have one for each text.
    """
    text = "\n".join(text for path in paths for text in get_text_at_path(dict(value), path))
    return text if is_visible(text) else None


def expiry_of(ttl_minutes: float) -> datetime:
    """Return the expiry of an item that is stored now.

    Raises:
        ValueError: If the lifetime is not positive, or longer than 100 years.
    """
    if not 0 < ttl_minutes <= MAX_TTL_MINUTES:
        raise ValueError(f"ttl: {ttl_minutes} minutes: more than 0, and at most {MAX_TTL_MINUTES} (a hundred years)")
    return datetime.now(UTC) + timedelta(minutes=ttl_minutes)


def value_of(memory: Memory) -> dict[str, Any]:
    """Return the value of an item. For a memory that another client stored, it is its content and metadata."""
    entry = memory.metadata.get(METADATA)
    if isinstance(entry, dict) and isinstance(entry.get("value"), dict):
        return dict(entry["value"])
    return {"content": memory.content, "metadata": memory.metadata}


def item_fields(memory: Memory) -> dict[str, Any]:
    """Return the arguments of a LangGraph `Item`. Without an update, `updated_at` is when the version began."""
    return {
        "namespace": remove_own_root(memory.namespace),
        "key": memory.key,
        "value": value_of(memory),
        "created_at": memory.created_at,
        "updated_at": memory.updated_at or memory.valid_from or memory.created_at,
    }


def search_item(memory: Memory) -> SearchItem:
    """Convert a found or listed memory. Only a found one has a score."""
    return SearchItem(**item_fields(memory), score=memory.score if isinstance(memory, Found) else None)
