"""A batch: each item is checked, stored and answered by itself."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import Document, check, field_errors, field_errors_of_faults
from agentmemory_operator.entrypoints.api.problems import problem_of
from agentmemory_operator.entrypoints.api.requests import BatchEnvelope, MemoryIn
from agentmemory_operator.errors import AgentMemoryError, FieldError, Forbidden, RequestInvalid
from agentmemory_operator.services.drafts import NewMemory
from agentmemory_operator.services.stored import Stored

Item = NewMemory | AgentMemoryError


# No key that a caller sends has it: items' keys and single memories' keys never meet.
_KEY_AND_PLACE = "{key}\x1f{place}"


def read_items(
    document: Document,
    *,
    default_type: str | None,
    check_users: Callable[[Iterable[str]], None],
    idempotency_key: str | None = None,
) -> list[Item]:
    """Return each item: to store, or why it cannot be.

    Args:
        check_users: raises Forbidden where one of them is not the caller's.
        idempotency_key: of the batch; an item's own is made of it and the item's place.

    Raises:
        RequestInvalid: the batch itself is wrong.
    """
    errors: dict[int, list[FieldError]] = defaultdict(list)
    outside = []
    for location, message in document.faults:
        match location:
            case ("memories", int() as index, *rest):
                errors[index] += field_errors_of_faults([(tuple(rest), message)])
            case _:
                outside.append((location, message))
    envelope = check(BatchEnvelope, Document(document.value, tuple(outside)))
    keys = [
        None if idempotency_key is None else _KEY_AND_PLACE.format(key=idempotency_key, place=place)
        for place in range(len(envelope.memories))
    ]
    return [
        RequestInvalid(errors[place]) if place in errors else _read_item(value, default_type, key, check_users)
        for place, (value, key) in enumerate(zip(envelope.memories, keys, strict=True))
    ]


def _read_item(
    value: Any, default_type: str | None, idempotency_key: str | None, check_users: Callable[[Iterable[str]], None]
) -> Item:
    try:
        sent = MemoryIn.model_validate(value)
        check_users([sent.user_id])
        return sent.new_memory(default_type=default_type, idempotency_key=idempotency_key)
    except ValidationError as error:
        return RequestInvalid(field_errors(error.errors(include_url=False), known=MemoryIn.model_fields))
    except Forbidden as error:
        return error


def render_results(
    items: Sequence[Item], stored: Sequence[Stored | AgentMemoryError], *, request_id: str
) -> list[dict[str, Any]]:
    """Return one answer an item, in order.

    Args:
        stored: one result for each item that was to be stored.
    """
    outcomes = iter(stored)
    results = [item if isinstance(item, AgentMemoryError) else next(outcomes) for item in items]
    return [
        {"error": problem_of(result).body(request_id)}
        if isinstance(result, AgentMemoryError)
        else answers.stored(result)
        for result in results
    ]
