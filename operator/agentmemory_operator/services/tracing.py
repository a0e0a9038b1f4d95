"""What traces are made with where none are wanted."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from agentmemory_operator.ports.tracing import Span, SpanKind, Tracer


class _NoSpan:
    """Implements ports.Span; keeps nothing."""

    headers: Mapping[str, str] = {}

    def note(self, name: str, value: str | int) -> None:
        """Do nothing."""

    def fail(self, kind: str) -> None:
        """Do nothing."""


class _NoTracer:
    """Implements ports.Tracer; makes nothing."""

    def __init__(self) -> None:
        self._span = nullcontext(_NoSpan())

    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Open nothing."""
        return self._span

    async def close(self) -> None:
        """Do nothing."""


NO_TRACES: Tracer = _NoTracer()
