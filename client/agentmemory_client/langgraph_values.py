"""What LangGraph calls a value, a namespace and an item, and what they are in an agent's memory."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from langgraph.store.base import MatchCondition, SearchItem, get_text_at_path, tokenize_path

from agentmemory_client.values import Found, Memory

Namespace: TypeAlias = tuple[str, ...]
USER_ROOT, OWN_ROOT, METADATA = "memories", "langgraph", "langgraph"
TTL_MAX_MINUTES = 100 * 366 * 24 * 60


def of_one_text(paths: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the path that is embedded; an empty sequence is none.

    Raises:
        ValueError: there are several, or it may lead to several texts.
    """
    paths = (paths,) if isinstance(paths, str) else tuple(paths)
    steps = [step for path in paths for step in (tokenize_path(path) if path != "$" else ())]
    if len(paths) > 1 or any(step in ("*", "[*]") or step.startswith("{") for step in steps):
        raise ValueError(
            f"{name}: {list(paths)!r} may lead to several texts, and an item has one vector: name one path of one text,"
            " or '$' for the whole value"
        )
    return paths


def names_user(namespace: Namespace) -> bool:
    """Whether a namespace says whose it is."""
    return len(namespace) > 1 and namespace[0] == USER_ROOT


def outside(namespace: Namespace) -> Namespace:
    """A namespace as LangGraph knows it."""
    return namespace[1:] if namespace[:1] == (OWN_ROOT,) else namespace


def literal(path: Sequence[str]) -> Namespace:
    """The parts before the first wildcard."""
    parts = tuple(path)
    return parts[: parts.index("*")] if "*" in parts else parts


def is_met(condition: MatchCondition, namespace: Namespace) -> bool:
    """Whether a namespace is what a condition says."""
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    near = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", part) for wanted, part in zip(path, near, strict=True))


def is_visible(text: str) -> bool:
    """Whether a text shows anything; what does not has no meaning to rank by."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text)


def text_of(value: Mapping[str, Any], paths: Sequence[str]) -> str | None:
    """What is embedded of a value; None where nothing is to be."""
    text = "\n".join(text for path in paths for text in get_text_at_path(dict(value), path))
    return text if text.strip() else None


def end_of(ttl_minutes: float) -> datetime:
    """The end of an item that is put now.

    Raises:
        ValueError: it would not last, or for too long.
    """
    if not 0 < ttl_minutes <= TTL_MAX_MINUTES:
        raise ValueError(f"ttl: {ttl_minutes} minutes: more than 0, and at most {TTL_MAX_MINUTES} (a hundred years)")
    return datetime.now(UTC) + timedelta(minutes=ttl_minutes)


def value_of(memory: Memory) -> dict[str, Any]:
    """The value of an item; of one that came another way its content and metadata."""
    ours = memory.metadata.get(METADATA)
    if isinstance(ours, dict) and isinstance(ours.get("value"), dict):
        return dict(ours["value"])
    return {"content": memory.content, "metadata": memory.metadata}


def fields_of(memory: Memory) -> dict[str, Any]:
    """What a memory is as an item."""
    return {
        "namespace": outside(memory.namespace),
        "key": memory.key,
        "value": value_of(memory),
        "created_at": memory.created_at,
        "updated_at": memory.updated_at or memory.valid_from or memory.created_at,
    }


def search_item(memory: Memory) -> SearchItem:
    """A memory that was found, or listed."""
    return SearchItem(**fields_of(memory), score=memory.score if isinstance(memory, Found) else None)
