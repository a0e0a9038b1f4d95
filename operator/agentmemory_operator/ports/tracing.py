"""Ports for traces, and for measuring the calls to Qdrant."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol


class Span(Protocol):
    """An operation in a trace."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for an outgoing call, which make the callee's span a child of this one (W3C Trace Context)."""
        ...

    def note(self, name: str, value: str | int) -> None:
        """Set an attribute for searches in traces. Never pass text of a memory, a user id or a secret."""
        ...

    def fail(self, kind: str) -> None:
        """Mark the span as failed.

        Args:
            kind: Class of the error or HTTP status, stored as `error.type`.
        """
        ...


SpanKind = Literal["server", "client", "internal"]


class Tracer(Protocol):
    """Creates spans, and exports them after they have ended."""

    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Open a span inside the current one. An exception that leaves the context marks it as failed.

        Args:
            parent: Headers of an incoming request, which may name the caller's span. None uses the current span.
        """
        ...

    async def close(self) -> None:
        """Export the spans that have not been sent yet."""
        ...


class EngineCall(Protocol):
    """Call to Qdrant in progress."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Tracing headers to send with the call."""
        ...

    def record_status(self, status: int, *, is_disk_full: bool = False) -> None:
        """Record the HTTP status of the response. A call without one counts as unreachable.

        Args:
            is_disk_full: True if the response reports that Qdrant's disk is full, which is an outcome of its own.
        """
        ...


class EngineMeter(Protocol):
    """Measures duration and outcome of calls to Qdrant."""

    def engine(self, operation: str) -> AbstractContextManager[EngineCall]:
        """Measure one call while the context is open.

        Args:
            operation: Value of a metric label, from a small fixed set.
        """
        ...

    def count_retry(self, operation: str) -> None:
        """Count a read that timed out and is retried."""
        ...
