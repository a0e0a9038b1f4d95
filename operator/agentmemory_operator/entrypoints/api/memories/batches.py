"""A batch: each item is checked, stored and answered by itself."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import (
    ParsedBody,
    check,
    check_keys,
    check_names,
    not_readable,
    parse_json,
)
from agentmemory_operator.entrypoints.api.load.json_limits import (
    Cut,
    ItemSpan,
    NoJson,
    TooMuch,
    cut_list,
    few_parts,
)
from agentmemory_operator.entrypoints.api.problems import problem_of
from agentmemory_operator.entrypoints.api.requests import BATCH_MAX, BatchEnvelope, MemoryIn
from agentmemory_operator.errors import AgentMemoryError, FieldError, Forbidden, RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.exact_numbers import may_exceed_int64

Item = IncomingMemory | AgentMemoryError

# An item's answer is as long as a good one's, and some.
ITEM_ERRORS_MAX = 5
_LIST = "memories"
# No key that a caller sends has it: items' keys and single memories' keys never meet.
_KEY_AND_PLACE = "{key}\x1f{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reads the items of one batch, each by itself.

    Attributes:
        rights: of the caller.
        take_room: raises where there is no room for so many parts.
        idempotency_key: of the batch; an item's own is made of it and the item's place.
    """

    default_type: str | None
    rights: AgentRights
    take_room: Callable[[int], None]
    idempotency_key: str | None = None

    def read(self, body: bytes) -> Generator[None, None, list[Item]]:
        """Each item: to store, or why it cannot be.

        Raises:
            RequestInvalid: the batch itself is wrong.
            ProblemRaised: it is not JSON, or there is no room for it now.
        """
        items = self._small(body)
        if items is None:
            try:
                cut = yield from cut_list(body, _LIST, max_items=BATCH_MAX)
            except (TooMuch, NoJson) as error:
                raise not_readable(error) from None
            self.take_room(cut.parts)
            items = _items_of(cut)
        read: list[Item] = []
        for place, item in enumerate(items):
            # What was not cut out was parsed with what is around it, and is small.
            document = _parsed(body, item) if isinstance(item, ItemSpan) else ParsedBody(item)
            read.append(self._item(document, place) if isinstance(document, ParsedBody) else document)
            yield
        return read

    def _small(self, body: bytes) -> list[Any] | None:
        """The items of a batch that is no larger than one item may be; None of others, and where anything is wrong."""
        parts = few_parts(body)
        if parts is None or may_exceed_int64(body):
            return None
        self.take_room(parts)
        try:
            value = orjson.loads(body)
            check_keys(body, value)
            return check(BatchEnvelope, ParsedBody(value)).memories
        except (orjson.JSONDecodeError, RequestInvalid):
            return None

    def _item(self, document: ParsedBody, place: int) -> Item:
        key = None if self.idempotency_key is None else _KEY_AND_PLACE.format(key=self.idempotency_key, place=place)
        try:
            sent = check(MemoryIn, document)
            check_names(self.rights, sent)
        except (RequestInvalid, Forbidden) as error:
            return error
        return sent.new_memory(default_type=self.default_type, stored_by=self.rights.author, idempotency_key=key)


def _items_of(cut: Cut) -> list[Any]:
    document = parse_json(cut.rest)
    if cut.items is not None and isinstance(document.value, dict) and document.value.get(_LIST) == []:
        document.value[_LIST] = cut.items
    return check(BatchEnvelope, document).memories


def _parsed(body: bytes, item: ItemSpan) -> ParsedBody | RequestInvalid:
    if item.fault:
        return RequestInvalid([FieldError("body", item.fault)])
    return parse_json(body[item.start : item.end])


def render_results(
    items: Sequence[Item], stored: Sequence[StoredMemory | AgentMemoryError], *, request_id: str
) -> list[dict[str, Any]]:
    """One answer an item, in order.

    Args:
        stored: one result for each item that was to be stored.
    """
    outcomes = iter(stored)
    results = [item if isinstance(item, AgentMemoryError) else next(outcomes) for item in items]
    return [
        {"error": problem_of(result).body(request_id, errors_max=ITEM_ERRORS_MAX)}
        if isinstance(result, AgentMemoryError)
        else answers.stored(result)
        for result in results
    ]
