"""The calls about items: memories under keys of namespaces; docs/keyed.md explains each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict
from uuid import uuid4

from agentmemory_operator.client.exchange import Call, path_of
from agentmemory_operator.client.values import ItemStored, KeysPage, Memory, NamespaceSize, read_value


class ItemOptions(TypedDict, total=False):
    """What an item may have besides its place and its content.

    `user_id` is whose it is, where the namespace does not say so; without `key` a new one is made.
    """

    key: str
    user_id: str
    metadata: Mapping[str, Any]
    vector: Sequence[float]


def put_item(
    agent: str, namespace: Sequence[str], content: str, *, idempotency_key: str | None, options: ItemOptions
) -> Call[ItemStored]:
    """Return the call that puts an item."""
    given: dict[str, Any] = {**options}
    place: dict[str, Any] = {name: given.pop(name) for name in ("key", "user_id") if name in given}
    return Call(
        method="PUT",
        path=path_of(agent, "items"),
        parameters={"namespace": list(namespace), **place},
        body={"content": content, **given},
        key=idempotency_key or str(uuid4()),
        read=lambda answer: read_value(ItemStored, answer),
    )


def get_item(agent: str, namespace: Sequence[str], key: str, *, user_id: str | None) -> Call[Memory]:
    """Return the call that reads an item."""
    parameters = _place(namespace, user_id) | {"key": key}
    path = path_of(agent, "items")
    return Call(method="GET", path=path, parameters=parameters, read=lambda answer: read_value(Memory, answer))


def delete_item(agent: str, namespace: Sequence[str], key: str, *, user_id: str | None) -> Call[None]:
    """Return the call that deletes an item; one that a lost attempt deleted is no error."""
    parameters = _place(namespace, user_id) | {"key": key}
    path = path_of(agent, "items")
    return Call(method="DELETE", path=path, parameters=parameters, read=lambda answer: None, gone=lambda: None)


def list_keys(agent: str, namespace: Sequence[str], *, user_id: str | None) -> Call[KeysPage]:
    """Return the call that reads the first page of the keys of a namespace."""
    path = path_of(agent, "keys")
    return Call(
        method="GET",
        path=path,
        parameters=_place(namespace, user_id),
        read=lambda answer: read_value(KeysPage, answer),
    )


def next_keys(call: Call[KeysPage], cursor: str) -> Call[KeysPage]:
    """Return the call that reads the page after."""
    return replace(call, parameters={**(call.parameters or {}), "cursor": cursor})


def list_namespaces(agent: str, prefix: Sequence[str], *, user_id: str | None) -> Call[tuple[NamespaceSize, ...]]:
    """Return the call that lists a user's namespaces that begin with a prefix."""
    return Call(
        method="GET",
        path=path_of(agent, "namespaces"),
        parameters=_place(prefix, user_id),
        read=lambda answer: tuple(read_value(NamespaceSize, line) for line in answer["results"]),
    )


def _place(namespace: Sequence[str], user_id: str | None) -> dict[str, Any]:
    return {"namespace": list(namespace)} | ({} if user_id is None else {"user_id": user_id})
