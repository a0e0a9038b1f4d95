"""LangChain retriever and key-value stores on an agent's memory. They need the extra `langchain`.

Errors of calls (ApiError, ApiUnreachable) are raised, as LangChain expects: `with_fallbacks` and `with_retry` handle
them.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.stores import BaseStore
from pydantic import Field

from agentmemory_client.adapters.common import find_memories
from agentmemory_client.handles import Agent, User
from agentmemory_client.item_calls import NewItem
from agentmemory_client.problems import ApiError
from agentmemory_client.values import Found

V = TypeVar("V")
METADATA = "langchain"
MAX_CONCURRENT_READS = 8
# Limits of one request. The API accepts bodies up to 16 MiB.
MAX_PUTS, MAX_PUT_CHARS = 250, 1 << 21


class AgentMemoryRetriever(BaseRetriever):
    """Searches the memories of one user.

    Attributes:
        user: User of a blocking `Client`.
        k: Maximum number of documents. `invoke(query, k=...)` overrides it.
        options: Further options of the search, for example `types`, `filters` or `threshold`.
    """

    user: User
    k: int = 4
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return self._find(query, k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await asyncio.to_thread(self._find, query, k)

    def _find(self, query: str, k: int | None) -> list[Document]:
        found = find_memories(self.user, query, limit=self.k if k is None else k, **self.options)
        return [_document(memory) for memory in found]


def _document(memory: Found) -> Document:
    """Convert a found memory; its own metadata is below `metadata`."""
    facts = {
        "score": memory.score,
        "type": memory.type,
        "importance": memory.importance,
        "created_at": memory.created_at.isoformat(),
        "session_id": memory.session_id,
        "speaker": memory.speaker,
        "tags": list(memory.tags),
        "metadata": memory.metadata,
    }
    return Document(id=memory.id, page_content=memory.content or "", metadata=facts)


class _ItemStore(BaseStore[str, V], Generic[V]):
    """Values as items of one namespace.

    The text of an item is its key, so a value is never embedded. An item has the value in its metadata.
    """

    def __init__(self, agent: Agent, user_id: str, *, name: str = "store") -> None:
        """Prepare the store without sending a request.

        Args:
            agent: Agent of a blocking `Client`.
            user_id: Owner of the items. Choose one that is no person: a search of this user finds the keys too.
            name: Name of the store. Stores of the same user with different names share no keys.
        """
        self._agent = agent
        self._user_id = user_id
        self._namespace = (METADATA, name)

    def mget(self, keys: Sequence[str]) -> list[V | None]:
        """Return the value of each key, None if it has none."""
        distinct = list(dict.fromkeys(keys))
        with ThreadPoolExecutor(MAX_CONCURRENT_READS) as pool:
            values = dict(zip(distinct, pool.map(self._get, distinct), strict=True))
        return [values[key] for key in keys]

    def mset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Store values durably. Of several values of a key the last is stored.

        Raises:
            ApiError: If the API refused a value, for example one larger than 1 MiB. Other values may be stored.
        """
        for batch in _split([self._item(key, value) for key, value in dict(key_value_pairs).items()]):
            for result in self._agent.put_items(batch):
                if isinstance(result, ApiError):
                    raise result

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete values. A key without a value is no error."""
        for key in dict.fromkeys(keys):
            try:
                self._agent.delete_item(self._namespace, key, user_id=self._user_id)
            except ApiError as error:
                if error.status != 404:
                    raise

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that begin with a prefix. Pages are read on demand."""
        for key in self._agent.keys(self._namespace, user_id=self._user_id):
            if key.startswith(prefix or ""):
                yield key

    def _get(self, key: str) -> V | None:
        try:
            memory = self._agent.get_item(self._namespace, key, user_id=self._user_id)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        stored = memory.metadata.get(METADATA)
        return self._decode(stored) if isinstance(stored, dict) else None

    def _item(self, key: str, value: V) -> NewItem:
        metadata = {METADATA: self._encode(value)}
        return {
            "namespace": self._namespace,
            "user_id": self._user_id,
            "key": key,
            "content": key,
            "metadata": metadata,
        }

    def _encode(self, value: V) -> Any:
        raise NotImplementedError

    def _decode(self, stored: Any) -> V:
        raise NotImplementedError


class AgentMemoryJsonStore(_ItemStore[Any]):
    """Key-value store of JSON values, for example texts, numbers and dicts."""

    def _encode(self, value: Any) -> Any:
        return {"value": value}

    def _decode(self, stored: Any) -> Any:
        return stored["value"]


class AgentMemoryByteStore(_ItemStore[bytes]):
    """Key-value store of bytes, for example for `CacheBackedEmbeddings`."""

    def _encode(self, value: bytes) -> Any:
        # Hexadecimal: a run of base64 may look like a key of a cloud, which the API would remove.
        return {"hex": value.hex()}

    def _decode(self, stored: Any) -> bytes:
        return bytes.fromhex(stored["hex"])


def _split(items: Sequence[NewItem]) -> Iterator[list[NewItem]]:
    """Split items into batches within the limits of a request; a larger item is a batch of its own."""
    batch, size = list[NewItem](), 0
    for item in items:
        item_size = len(json.dumps(item["metadata"])) + 2 * len(item["content"])
        if batch and (len(batch) == MAX_PUTS or size + item_size > MAX_PUT_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch
