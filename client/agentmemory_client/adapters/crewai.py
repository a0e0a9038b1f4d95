"""Storage of CrewAI's memory in an agent's memory: `AgentMemoryStorage`. It needs the extra `crewai`.

CrewAI embeds texts itself and sends the vectors, so the AgentMemory needs `embedding.provider: none` with the
dimensions of CrewAI's embedder. A record is an item under its id. Its scope and the scopes above are tags, so lists of
a scope are filtered by the API; the metadata contains the whole record.

Errors of calls (ApiError, ApiUnreachable) are raised: CrewAI reports a failed save as an event, and a failed recall
keeps no crew from its task.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from crewai.memory.types import MemoryRecord, ScopeInfo

from agentmemory_client.adapters.common import MAX_TOP_K
from agentmemory_client.handles import Agent
from agentmemory_client.item_calls import NewItem
from agentmemory_client.memory_calls import ChangeOptions, ListOptions, SearchOptions
from agentmemory_client.problems import ApiError
from agentmemory_client.texts import is_visible
from agentmemory_client.values import Memory

METADATA = "crewai"
MAX_CONTENT_CHARS = 8_192
MAX_TAGS, MAX_TAG_CHARS = 64, 128
MAX_FILTER_CHARS, MAX_FILTER_VALUES = 1_024, 200
RECORDS_PER_PAGE = 1_000
# A request with 100 vectors of 3,072 numbers has 6 MB; the API accepts 16 MiB.
RECORDS_PER_REQUEST = 100
MAX_CONCURRENT_DELETIONS = 8
# The API excludes a result whose score is below the threshold. No score is as low as this.
NO_THRESHOLD = -1e30

Condition = Callable[[MemoryRecord], bool]


class AgentMemoryStorage:
    """Records of CrewAI's memory as items of one user; implements CrewAI's protocol `StorageBackend`.

    The object's ranking chooses the records that a search returns, and the score of a record is its similarity:
    CrewAI adds recency and importance itself. The API counts accesses, so `last_accessed` needs no call.

    Args:
        agent: Agent of a blocking `Client`. Close the client after the last crew.
        user_id: Owner of the records.
    """

    def __init__(self, agent: Agent, user_id: str) -> None:
        self._agent = agent
        self._user = agent.user(user_id)
        self._namespace = ("memories", user_id, METADATA)

    def save(self, records: list[MemoryRecord]) -> None:
        """Store records durably. A record with the id of a stored one replaces it.

        Raises:
            ApiError: If the API refused a record. The others of its request are stored.
        """
        for start in range(0, len(records), RECORDS_PER_REQUEST):
            batch = records[start : start + RECORDS_PER_REQUEST]
            for result in self._agent.put_items([self._item(record) for record in batch]):
                if isinstance(result, ApiError):
                    raise result

    def search(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """Return the most similar records with their similarity, at most `limit`, best first."""
        if limit < 1:
            return []
        is_match = _condition(scope_prefix, categories, metadata_filter)
        options: SearchOptions = {"namespace": self._namespace, "include_scopes": [], "threshold": NO_THRESHOLD}
        options |= {"vector": query_embedding, "terms": True}
        if scope_tags := _tags(scope_prefix):
            options["tags"] = scope_tags[-1:]
        if filters := _filters(categories, metadata_filter):
            options["filters"] = filters
        top_k = min(limit, MAX_TOP_K)
        while True:
            options["top_k"] = top_k
            results = self._user.search(**options).results
            scored = [(found, found.score if found.similarity is None else found.similarity) for found in results]
            matches = [
                (record, score) for found, score in scored if score >= min_score and is_match(record := _record(found))
            ]
            if len(matches) >= limit or len(results) < top_k or top_k == MAX_TOP_K:
                return sorted(matches, key=lambda match: -match[1])[:limit]
            # The API evaluates only a part of the conditions: read more.
            top_k = min(4 * top_k, MAX_TOP_K)

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the records that meet all conditions, all records without a condition; return their number."""
        if record_ids is not None and not (scope_prefix or categories or older_than or metadata_filter):
            return self._delete(record_ids)
        matching = (
            record.id
            for record in self._records(scope_prefix, categories, metadata_filter)
            if (record_ids is None or record.id in record_ids)
            and (older_than is None or _aware(record.created_at) < _aware(older_than))
        )
        return self._delete(list(matching))

    def update(self, record: MemoryRecord) -> None:
        """Replace the record with the same id. Without an embedding the stored vector and content stay.

        Raises:
            ValueError: If the content changes and there is no embedding. Nothing was changed.
            PreconditionFailed: If there is no embedding, and another writer changes the record at the same time.
        """
        if record.embedding:
            self.save([record])
            return
        stored = self._read(record.id)
        if stored is None or _record(stored).content != record.content:
            raise ValueError(f"record {record.id}: embedding is required, because its content is new")
        item = self._item(record)
        changes: ChangeOptions = {
            "metadata": item["metadata"],
            "importance": item["importance"],
            "tags": item["tags"],
        }
        # The condition keeps the content in the metadata that of the vector.
        self._user.change(stored.id, if_match=stored.etag, **changes)

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """Read a record, without its embedding; None if there is none with this id."""
        stored = self._read(record_id)
        return None if stored is None else _record(stored)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """List the records of a scope and of the scopes below it, newest first."""
        records = sorted(self._records(scope_prefix), key=lambda record: _aware(record.created_at), reverse=True)
        return records[offset : offset + limit]

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """Describe a scope: its records, also those of the scopes below it, and its child scopes."""
        scope = _path(scope)
        records = list(self._records(scope))
        times = [record.created_at for record in sorted(records, key=lambda record: _aware(record.created_at))]
        return ScopeInfo(
            path=scope,
            record_count=len(records),
            categories=sorted({category for record in records for category in record.categories}),
            oldest_record=times[0] if times else None,
            newest_record=times[-1] if times else None,
            child_scopes=_children(scope, records),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """List the scopes directly below a scope, sorted."""
        return _children(_path(parent), self._records(parent))

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        """Count the records of each category in a scope and the scopes below it."""
        counts: dict[str, int] = {}
        for record in self._records(scope_prefix):
            for category in record.categories:
                counts[category] = counts.get(category, 0) + 1
        return counts

    def count(self, scope_prefix: str | None = None) -> int:
        """Count the records of a scope and of the scopes below it."""
        return sum(1 for _ in self._records(scope_prefix))

    def reset(self, scope_prefix: str | None = None) -> None:
        """Delete the records of a scope and of the scopes below it; all records without a scope."""
        self.delete(scope_prefix)

    async def asave(self, records: list[MemoryRecord]) -> None:
        """As `save`."""
        await asyncio.to_thread(self.save, records)

    async def asearch(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """As `search`."""
        return await asyncio.to_thread(
            self.search, query_embedding, scope_prefix, categories, metadata_filter, limit, min_score
        )

    async def adelete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """As `delete`."""
        return await asyncio.to_thread(self.delete, scope_prefix, categories, record_ids, older_than, metadata_filter)

    def _records(
        self,
        scope_prefix: str | None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> Iterator[MemoryRecord]:
        options: ListOptions = {"namespace": self._namespace, "include_scopes": [], "limit": RECORDS_PER_PAGE}
        if scope_tags := _tags(scope_prefix):
            options["tag"] = scope_tags[-1]
        is_match = _condition(scope_prefix, categories, metadata_filter)
        return filter(is_match, map(_record, self._user.memories(**options)))

    def _read(self, record_id: str) -> Memory | None:
        try:
            return self._agent.get_item(self._namespace, record_id)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _delete(self, record_ids: Sequence[str]) -> int:
        def delete(record_id: str) -> bool:
            try:
                self._agent.delete_item(self._namespace, record_id)
            except ApiError as error:
                if error.status == 404:
                    return False
                raise
            return True

        with ThreadPoolExecutor(MAX_CONCURRENT_DELETIONS) as pool:
            return sum(pool.map(delete, dict.fromkeys(record_ids)))

    def _item(self, record: MemoryRecord) -> NewItem:
        fields = record.model_dump(mode="json", exclude={"embedding"})
        start = record.content[:MAX_CONTENT_CHARS]
        item: NewItem = {
            "namespace": self._namespace,
            "key": record.id,
            "content": start if is_visible(start) else record.id,
            "metadata": {METADATA: fields},
            "importance": record.importance,
            "tags": _tags(record.scope),
        }
        if record.embedding:
            item["vector"] = record.embedding
        return item


def _record(memory: Memory) -> MemoryRecord:
    """Convert an item. The time of the last access is that of the API, if there is one."""
    fields = dict(memory.metadata.get(METADATA) or {"content": memory.content or "", "id": memory.key})
    if memory.last_accessed_at is not None:
        fields["last_accessed"] = memory.last_accessed_at.astimezone(UTC).replace(tzinfo=None)
    return MemoryRecord.model_validate(fields)


def _condition(
    scope_prefix: str | None, categories: Sequence[str] | None, metadata_filter: dict[str, Any] | None
) -> Condition:
    """Return the function that decides whether a record is in a scope and matches the filters."""
    scope = _path(scope_prefix)

    def is_match(record: MemoryRecord) -> bool:
        own = _path(record.scope)
        return (
            (scope == "/" or own == scope or own.startswith(f"{scope}/"))
            and (not categories or any(category in record.categories for category in categories))
            and all(record.metadata.get(name) == value for name, value in (metadata_filter or {}).items())
        )

    return is_match


def _filters(categories: Sequence[str] | None, metadata_filter: dict[str, Any] | None) -> dict[str, Any]:
    """Return conditions of the API that hold for every record that matches. `_condition` decides."""
    filters: dict[str, Any] = {}
    if categories and len(categories) <= MAX_FILTER_VALUES and all(map(_is_filter_text, categories)):
        filters[f"metadata.{METADATA}.categories"] = {"in": list(categories)}
    for name, value in list((metadata_filter or {}).items())[:MAX_TAGS]:
        # Other values may be equal in Python and not in the API, such as 1 and True.
        if name.isascii() and name.replace("-", "").isidentifier() and _is_filter_text(value):
            filters[f"metadata.{METADATA}.metadata.{name}"] = value
    return filters


def _is_filter_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_FILTER_CHARS and is_visible(value) and value.isprintable()


def _path(scope: str | None) -> str:
    """Return a scope with one slash before each part; `/` for the root."""
    return "/" + "/".join(filter(None, (scope or "").split("/")))


def _tags(scope: str | None) -> list[str]:
    """Return the tags of a scope: those of the scopes above, then its own. A long one is truncated."""
    parts = _path(scope).split("/")[1:]
    paths = ("/".join(("", *parts[: count + 1]))[:MAX_TAG_CHARS] for count in range(len(parts)) if parts[count])
    return list(dict.fromkeys(paths))[:MAX_TAGS]


def _children(scope: str, records: "Iterator[MemoryRecord] | list[MemoryRecord]") -> list[str]:
    prefix = f"{scope}/" if scope != "/" else "/"
    below = (_path(record.scope) for record in records)
    names = {path.removeprefix(prefix).partition("/")[0] for path in below if path.startswith(prefix) and path != "/"}
    return sorted(f"{prefix}{name}" for name in names)


def _aware(time: datetime) -> datetime:
    """Return a time with a zone. CrewAI's own times have none and are in UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
