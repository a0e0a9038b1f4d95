"""The calls about items: memories under keys of namespaces; each is a method of an agent or a user. docs/keyed.md."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack

from agentmemory_client.exchange import Call, Listing, json_of, new_key, path_of
from agentmemory_client.problems import ApiError, error_of
from agentmemory_client.values import ItemStored, KeysPage, Memory, NamespaceSize, read_value

# A thousand items, whose contents a service embeds.
BATCH_S = 120.0


class ItemOptions(TypedDict, total=False):
    """What an item may have besides its place and its content.

    `user_id` is whose it is, where the namespace does not say so; without `key` a new one is made.
    """

    key: str
    user_id: str
    metadata: Mapping[str, Any]
    importance: float | str
    tags: Sequence[str]
    category: str
    expires_at: datetime | str
    parent_id: str
    vector: Sequence[float]


class NewItem(ItemOptions):
    """An item of a batch."""

    namespace: Sequence[str]
    content: str


def put_item(
    agent: str,
    namespace: Sequence[str],
    content: str,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[ItemOptions],
) -> Call[ItemStored]:
    """Store an item, durably, in the place of what lies under its key."""
    given: dict[str, Any] = {**options}
    place: dict[str, Any] = {name: given.pop(name) for name in ("key", "user_id") if name in given}
    return Call(
        method="PUT",
        path=path_of(agent, "items"),
        parameters={"namespace": list(namespace), **place},
        body=json_of({"content": content, **given}),
        key=idempotency_key or new_key(),
        read=partial(read_value, ItemStored),
    )


def put_items(
    agent: str, items: Sequence[NewItem], *, idempotency_key: str | None = None
) -> Call[list[ItemStored | ApiError]]:
    """Store up to 1,000 items; one result an item, in order, and an ApiError for each that was refused.

    Items of the same key are stored in their order.
    """
    return Call(
        method="POST",
        path=path_of(agent, "items", "batch"),
        body=json_of({"items": list(items)}),
        key=idempotency_key or new_key(),
        read=lambda answer: [error_of(result) or read_value(ItemStored, result) for result in answer["results"]],
        timeout_s=BATCH_S,
    )


def get_item(agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> Call[Memory]:
    """An item."""
    parameters = _place(namespace, user_id) | {"key": key}
    return Call(method="GET", path=path_of(agent, "items"), parameters=parameters, read=partial(read_value, Memory))


def item_versions(
    agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None
) -> Call[tuple[Memory, ...]]:
    """What later writes of an item replaced, newest first."""
    return Call(
        method="GET",
        path=path_of(agent, "items", "versions"),
        parameters=_place(namespace, user_id) | {"key": key},
        read=lambda answer: tuple(read_value(Memory, line) for line in answer["results"]),
    )


def delete_item(agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> Call[None]:
    """Delete an item."""
    parameters = _place(namespace, user_id) | {"key": key}
    path = path_of(agent, "items")
    # One that a lost attempt deleted is no error.
    return Call(method="DELETE", path=path, parameters=parameters, read=lambda answer: None, gone=lambda: None)


def keys(agent: str, namespace: Sequence[str], *, user_id: str | None = None) -> Listing[str]:
    """The keys of a namespace; pages are read as they are needed."""
    parameters = _place(namespace, user_id)
    read = partial(read_value, KeysPage)
    return Listing(Call(method="GET", path=path_of(agent, "keys"), parameters=parameters, read=read))


def namespaces(
    agent: str, prefix: Sequence[str] = (), *, user_id: str | None = None
) -> Call[tuple[NamespaceSize, ...]]:
    """A user's namespaces that have items, by name."""
    return Call(
        method="GET",
        path=path_of(agent, "namespaces"),
        parameters=_place(prefix, user_id),
        read=lambda answer: tuple(read_value(NamespaceSize, line) for line in answer["results"]),
    )


def _place(namespace: Sequence[str], user_id: str | None) -> dict[str, Any]:
    return {"namespace": list(namespace)} | ({} if user_id is None else {"user_id": user_id})
