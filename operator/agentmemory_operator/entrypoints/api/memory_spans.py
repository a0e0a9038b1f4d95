"""Spans of memory operations, named by the GenAI semantic conventions of OpenTelemetry (`gen_ai.memory.*`).

An attribute is a name, an ID or a count: never a text, a query, a vector or a user ID.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType

from starlette.requests import Request

from agentmemory_operator.runtime.metrics_api import ApiMeter

SPAN = "memory_span"
MAX_STORE_NAME_CHARS = 64

_AGENT = "/v1/agents/{agent}"
OPERATIONS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("POST", f"{_AGENT}/search"): "search_memory",
        ("POST", f"{_AGENT}/context"): "search_memory",
        ("GET", f"{_AGENT}/memories"): "search_memory",
        ("GET", f"{_AGENT}/memories/{{id}}"): "search_memory",
        ("GET", f"{_AGENT}/items"): "search_memory",
        ("POST", f"{_AGENT}/memories"): "create_memory",
        ("POST", f"{_AGENT}/memories/batch"): "create_memory",
        ("POST", f"{_AGENT}/messages"): "create_memory",
        ("POST", f"{_AGENT}/hooks/{{name}}"): "create_memory",
        ("POST", f"{_AGENT}/import"): "create_memory",
        ("PUT", f"{_AGENT}/sessions/{{session_id}}/working"): "create_memory",
        ("PATCH", f"{_AGENT}/memories/{{id}}"): "update_memory",
        ("PUT", f"{_AGENT}/items"): "upsert_memory",
        ("POST", f"{_AGENT}/items/batch"): "upsert_memory",
        ("DELETE", f"{_AGENT}/items"): "delete_memory",
        ("DELETE", f"{_AGENT}/memories/{{id}}"): "delete_memory",
        ("POST", f"{_AGENT}/forget"): "delete_memory",
    }
)
"""`gen_ai.operation.name` by method and path. Requests to other endpoints get no span of a memory operation."""


def memory_span(request: Request, operation: str | None) -> AbstractContextManager[None]:
    """Return a context with the span of a request; without a span if `operation` is None or no traces are exported."""
    meter: ApiMeter = request.app.state.services.meter
    return nullcontext() if operation is None or not meter.is_tracing else _opened(request, operation, meter)


def record_result(request: Request, count: int, *, id: str | None = None, top_k: int | None = None) -> None:
    """Add the result of a memory operation to its span, if it has one.

    Args:
        count: Number of memories that were returned, stored, changed or removed.
        id: Id of the memory; None if the request is about several.
        top_k: Requested maximum number of results; None if the request names none or is no search.
    """
    if (span := request.scope.get(SPAN)) is None:
        return
    span.note("gen_ai.memory.record.count", count)
    if id is not None:
        span.note("gen_ai.memory.record.id", id)
    if top_k is not None:
        span.note("gen_ai.retrieval.top_k", top_k)


@contextmanager
def _opened(request: Request, operation: str, meter: ApiMeter) -> Iterator[None]:
    with meter.memory_operation(operation, request.path_params["agent"][:MAX_STORE_NAME_CHARS]) as request.scope[SPAN]:
        yield
