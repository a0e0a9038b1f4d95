"""Parse and validate each item of a batch individually, and render one result per item."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from pydantic import BaseModel

from agentmemory_operator.entrypoints.api.bodies import ParsedBody, check_keys, limit_problem, parse_json, validate_body
from agentmemory_operator.entrypoints.api.load.json_limits import (
    ItemSpan,
    LimitExceeded,
    MalformedJson,
    SplitDocument,
    parts_if_small,
    split_list,
)
from agentmemory_operator.entrypoints.api.memory_requests import MAX_BATCH_ITEMS
from agentmemory_operator.entrypoints.api.problems import problem_of
from agentmemory_operator.errors import AgentMemoryError, FieldError, RequestInvalid
from agentmemory_operator.memories.rules.exact_numbers import may_exceed_int64

T = TypeVar("T")
Stored = TypeVar("Stored")

# Maximum number of errors in a result, which is then about as long as that of a stored item.
MAX_ITEM_ERRORS = 5
# Key of an item. A caller cannot send the separator, so keys of items never equal keys of single requests.
_KEY_AND_PLACE = "{key}\x1f{place}"


@dataclass(frozen=True, slots=True)
class BatchReader(Generic[T]):
    """Reads and validates the items of a batch individually.

    Attributes:
        envelope: Model of the batch with unvalidated items. Its only field is the list.
        read_item: Converts a parsed item and its idempotency key to the value to store. An AgentMemoryError rejects the
            item.
        reserve_memory: Reserves memory for a number of parts; raises ProblemRaised if there is no capacity.
        idempotency_key: Key of the batch, from which the key of an item is derived with the position of the item. None
            gives the items no keys.
    """

    envelope: type[BaseModel]
    read_item: Callable[[ParsedBody, str | None], T]
    reserve_memory: Callable[[int], None]
    idempotency_key: str | None = None

    def read(self, body: bytes) -> Generator[None, None, list[T | AgentMemoryError]]:
        """Return for each item the value to store, or the error that rejects it; yield between items.

        Raises:
            RequestInvalid: If the batch itself is invalid.
            ProblemRaised: If the body or an item is not JSON or repeats a key, or the process has no capacity now.
        """
        items = self._small(body)
        if items is None:
            try:
                cut = yield from split_list(body, self._list, max_items=MAX_BATCH_ITEMS)
            except (LimitExceeded, MalformedJson) as error:
                raise limit_problem(error) from None
            self.reserve_memory(cut.parts)
            items = self._items_of(cut)
        read: list[T | AgentMemoryError] = []
        for number, item in enumerate(items):
            # Do not parse an item that was not split off: it is small, and has been parsed with the envelope.
            document = _parsed(body, item) if isinstance(item, ItemSpan) else ParsedBody(item)
            read.append(self._item(document, number) if isinstance(document, ParsedBody) else document)
            yield
        return read

    def _small(self, body: bytes) -> list[Any] | None:
        """Parse a small batch as a whole and return its items, after reserving memory for it.

        None if the batch exceeds the limits of a single item, or has an error that `split_list` may find in one item.
        """
        parts = parts_if_small(body)
        if parts is None or may_exceed_int64(body):
            return None
        self.reserve_memory(parts)
        try:
            value = orjson.loads(body)
            check_keys(body, value)
            return self._checked(ParsedBody(value))
        except (orjson.JSONDecodeError, RequestInvalid):
            return None

    def _items_of(self, cut: SplitDocument) -> list[Any]:
        document, name = parse_json(cut.remainder), self._list
        if cut.items is not None and isinstance(document.value, dict) and document.value.get(name) == []:
            document.value[name] = cut.items
        return self._checked(document)

    def _checked(self, document: ParsedBody) -> list[Any]:
        items: list[Any] = getattr(validate_body(self.envelope, document), self._list)
        return items

    @property
    def _list(self) -> str:
        [name] = self.envelope.model_fields
        return name

    def _item(self, document: ParsedBody, number: int) -> T | AgentMemoryError:
        key = None if self.idempotency_key is None else _KEY_AND_PLACE.format(key=self.idempotency_key, place=number)
        try:
            return self.read_item(document, key)
        except AgentMemoryError as error:
            return error


def _parsed(body: bytes, item: ItemSpan) -> ParsedBody | RequestInvalid:
    if item.fault:
        return RequestInvalid([FieldError("body", item.fault)])
    return parse_json(body[item.start : item.end])


def render_results(
    items: Sequence[T | AgentMemoryError],
    stored: Sequence[Stored | AgentMemoryError],
    render: Callable[[Stored], dict[str, Any]],
    *,
    request_id: str,
) -> list[dict[str, Any]]:
    """Render one result per item, in order.

    Args:
        items: Result of `BatchReader.read`.
        stored: Results of the items that were not rejected, in order.
        render: Renders the result of a stored item.
    """
    outcomes = iter(stored)
    results = [item if isinstance(item, AgentMemoryError) else next(outcomes) for item in items]
    return [
        {"error": problem_of(result).body(request_id, max_errors=MAX_ITEM_ERRORS)}
        if isinstance(result, AgentMemoryError)
        else render(result)
        for result in results
    ]
