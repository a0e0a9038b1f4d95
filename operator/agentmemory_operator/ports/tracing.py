"""Traces of the work, and what measures the calls to Qdrant."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol


class Span(Protocol):
    """A part of the work, as traces show it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What a call carries, so that the callee's part is joined to this one (W3C Trace Context)."""
        ...

    def note(self, name: str, value: str | int) -> None:
        """Add what people look for; no text of a memory, no user, no secret."""
        ...

    def fail(self, kind: str) -> None:
        """Mark it as failed."""
        ...


SpanKind = Literal["server", "client", "internal"]


class Tracer(Protocol):
    """Makes traces."""

    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Open a part of the work inside the one that is open; what leaves it by an error has failed.

        Args:
            parent: headers of a request, which may name the caller's part.
        """
        ...

    async def close(self) -> None:
        """Send what is not sent yet."""
        ...


class EngineCall(Protocol):
    """One call to Qdrant under way."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What to send along."""
        ...

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        ...


class EngineMeter(Protocol):
    """Told of each call to Qdrant."""

    def engine(self, operation: str) -> AbstractContextManager[EngineCall]:
        """Measure one call; `operation` is one of few."""
        ...

    def repeated(self, operation: str) -> None:
        """Count a read that timed out and is tried once more."""
        ...
