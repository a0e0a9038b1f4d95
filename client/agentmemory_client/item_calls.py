"""Calls about items, which are memories under a namespace and a key. See docs/keyed.md.

Each becomes a method of an agent.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack

from agentmemory_client.exchange import Call, Listing, build_path, if_match_header, new_idempotency_key, to_json
from agentmemory_client.problems import ApiError, read_error
from agentmemory_client.values import ItemStored, KeysPage, Memory, NamespaceSize, read_value

# Long enough to embed and store a batch of 1,000 items.
BATCH_TIMEOUT_S = 120.0


class ItemOptions(TypedDict, total=False):
    """Optional fields of an item.

    Attributes:
        key: The API generates one if it is missing.
        user_id: Owner of the item. Required if the namespace does not contain the user.
        if_match: Store only if the stored item has this `etag`; `*` requires any item.
        if_none_match: True to store only if there is no item.
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
    if_match: str
    if_none_match: bool


class NewItem(ItemOptions):
    """One item of `put_items`: its namespace, its text to embed, and the optional fields."""

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
    """Store an item durably. It replaces the item that is stored under the same namespace and key.

    Raises:
        PreconditionFailed: If the stored item is not the one of `if_match`, or exists despite `if_none_match`.
    """
    given: dict[str, Any] = {**options}
    headers = if_match_header(given.pop("if_match", None))
    headers |= {"If-None-Match": "*"} if given.pop("if_none_match", False) else {}
    place: dict[str, Any] = {name: given.pop(name) for name in ("key", "user_id") if name in given}
    return Call(
        method="PUT",
        path=build_path(agent, "items"),
        parameters={"namespace": list(namespace), **place},
        body=to_json({"content": content, **given}),
        headers=headers,
        key=idempotency_key or new_idempotency_key(),
        read=partial(read_value, ItemStored),
    )


def put_items(
    agent: str, items: Sequence[NewItem], *, idempotency_key: str | None = None
) -> Call[list[ItemStored | ApiError]]:
    """Store up to 1,000 items. The results are in the order of the items; a refused item has an ApiError.

    An item that does not meet its `if_match` or `if_none_match` has a PreconditionFailed. Items with the same key are
    stored in their order.
    """
    return Call(
        method="POST",
        path=build_path(agent, "items", "batch"),
        body=to_json({"items": list(items)}),
        key=idempotency_key or new_idempotency_key(),
        read=lambda answer: [read_error(result) or read_value(ItemStored, result) for result in answer["results"]],
        timeout_s=BATCH_TIMEOUT_S,
    )


def get_item(agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> Call[Memory]:
    """Read the current version of an item.

    Raises:
        ApiError: 404 if there is no such item.
    """
    parameters = _address(namespace, user_id) | {"key": key}
    read = partial(read_value, Memory)
    return Call(method="GET", path=build_path(agent, "items"), parameters=parameters, read=read, has_etag=True)


def item_versions(
    agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None
) -> Call[tuple[Memory, ...]]:
    """List the earlier versions of an item that later writes replaced, newest first."""
    return Call(
        method="GET",
        path=build_path(agent, "items", "versions"),
        parameters=_address(namespace, user_id) | {"key": key},
        read=lambda answer: tuple(read_value(Memory, line) for line in answer["results"]),
    )


def delete_item(
    agent: str,
    namespace: Sequence[str],
    key: str,
    *,
    user_id: str | None = None,
    if_match: str | None = None,
    idempotency_key: str | None = None,
) -> Call[None]:
    """Delete an item.

    Args:
        if_match: Delete only the version with this `etag`; None deletes any.

    Raises:
        PreconditionFailed: If the stored item is not the one of `if_match`.
        ApiError: 404 if there is no such item. A 404 after a retry is no error.
    """
    return Call(
        method="DELETE",
        path=build_path(agent, "items"),
        parameters=_address(namespace, user_id) | {"key": key},
        headers=if_match_header(if_match),
        key=idempotency_key or new_idempotency_key(),
        read=lambda answer: None,
        # A 404 on a retry is no error: an earlier attempt has deleted the item.
        on_not_found=lambda: None,
    )


def keys(agent: str, namespace: Sequence[str], *, user_id: str | None = None) -> Listing[str]:
    """List the keys of a namespace. Pages are read on demand."""
    parameters = _address(namespace, user_id)
    read = partial(read_value, KeysPage)
    return Listing(Call(method="GET", path=build_path(agent, "keys"), parameters=parameters, read=read))


def namespaces(
    agent: str, prefix: Sequence[str] = (), *, user_id: str | None = None
) -> Call[tuple[NamespaceSize, ...]]:
    """List a user's namespaces that contain items, by name.

    Args:
        prefix: Labels that the namespaces begin with; empty lists all.
        user_id: Owner of the namespaces. None if `prefix` names the user.
    """
    return Call(
        method="GET",
        path=build_path(agent, "namespaces"),
        parameters=_address(prefix, user_id),
        read=lambda answer: tuple(read_value(NamespaceSize, line) for line in answer["results"]),
    )


def _address(namespace: Sequence[str], user_id: str | None) -> dict[str, Any]:
    return {"namespace": list(namespace)} | ({} if user_id is None else {"user_id": user_id})
