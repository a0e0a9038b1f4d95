"""The client by its former name, for one minor version more: `agentmemory_client` is its package now.

`MemoryClient` and `AsyncMemoryClient` have the calls by their former names, each with the agent and the user first.
"""

import warnings
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import agentmemory_client.identity_calls as identity_calls
import agentmemory_client.item_calls as item_calls
import agentmemory_client.memory_calls as memory_calls
from agentmemory_client import *  # noqa: F403 # what it was and what it is
from agentmemory_client import AsyncClient, AsyncUser, Client, Imported, User
from agentmemory_client.exchange import DEFAULT_URL as DEFAULT_URL
from agentmemory_client.exchange import Call, path_of
from agentmemory_client.methods import of_client

warnings.warn(
    "agentmemory_operator.client is removed in the next minor version: use agentmemory_client, from the package "
    "agentmemory-client",
    DeprecationWarning,
    stacklevel=2,
)


def settings_of(agent: str) -> Call[dict[str, Any]]:
    """An agent's settings in force, as the API sends them."""
    return Call(method="GET", path=path_of(agent), read=dict)


class FormerCalls:
    """The calls that name their agent and user."""

    remember = of_client(memory_calls.remember)
    remember_many = of_client(memory_calls.remember_many)
    search = of_client(memory_calls.search)
    search_fields = of_client(memory_calls.search_fields)
    memories = of_client(memory_calls.memories)
    page = of_client(memory_calls.page)
    get = of_client(memory_calls.get)
    change = of_client(memory_calls.change)
    stats = of_client(memory_calls.stats)
    history = of_client(memory_calls.history)
    children = of_client(memory_calls.children)
    tree = of_client(memory_calls.tree)
    working = of_client(memory_calls.working)
    keep = of_client(memory_calls.keep)
    end = of_client(memory_calls.end)
    delete = of_client(memory_calls.delete)
    put_item = of_client(item_calls.put_item)
    get_item = of_client(item_calls.get_item)
    item_versions = of_client(item_calls.item_versions)
    delete_item = of_client(item_calls.delete_item)
    keys = of_client(item_calls.keys)
    namespaces = of_client(item_calls.namespaces)
    forget = of_client(memory_calls.forget)
    forget_everything = of_client(memory_calls.forget_everything)
    would_forget = of_client(memory_calls.would_forget)
    would_forget_everything = of_client(memory_calls.would_forget_everything)
    receipts = of_client(memory_calls.receipts)
    mint_token = of_client(identity_calls.mint_token)
    users = of_client(identity_calls.users)


class MemoryClient(FormerCalls, Client):
    """`Client` with the former calls."""

    agent = of_client(settings_of)  # type: ignore[assignment] # it gave an agent's settings

    def export(
        self, agent: str, user_id: str, *, vectors: bool = False, plain: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield every memory of a user."""
        return User(self, agent, user_id).export(vectors=vectors, plain=plain)

    def import_memories(
        self, agent: str, user_id: str, lines: Iterable[bytes], *, include_erased: bool = False
    ) -> Imported:
        """Take in lines of an export."""
        return User(self, agent, user_id).import_memories(lines, include_erased=include_erased)


class AsyncMemoryClient(FormerCalls, AsyncClient):
    """`AsyncClient` with the former calls."""

    agent = of_client(settings_of)  # type: ignore[assignment] # it gave an agent's settings

    def export(
        self, agent: str, user_id: str, *, vectors: bool = False, plain: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield every memory of a user."""
        return AsyncUser(self, agent, user_id).export(vectors=vectors, plain=plain)

    async def import_memories(
        self, agent: str, user_id: str, lines: Iterable[bytes], *, include_erased: bool = False
    ) -> Imported:
        """Take in lines of an export."""
        return await AsyncUser(self, agent, user_id).import_memories(lines, include_erased=include_erased)
