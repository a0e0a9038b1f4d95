"""Traces through the OpenTelemetry SDK, exported over OTLP/HTTP; configured by `OTEL_*` variables.

Imported only if tracing is enabled: the SDK takes 0.1 s to import.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentmemory_operator import __version__
from agentmemory_operator.ports.tracing import SpanKind

_KINDS = {"server": trace.SpanKind.SERVER, "client": trace.SpanKind.CLIENT, "internal": trace.SpanKind.INTERNAL}
CLOSING_S = 5.0
_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpTracer:
    """Implements ports.Tracer.

    Args:
        service: Name of this process, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES sets one.
        exporter: Receives the spans. None sends them to the collector that OTEL_* configures.
    """

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        base = Resource.create({SERVICE_NAME: service, SERVICE_VERSION: __version__})
        # A private provider: through the global one, other packages could export anything, including user ids.
        self._provider = TracerProvider(resource=base.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("agentmemory_operator", __version__)

    @contextmanager
    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> Iterator["_Span"]:
        """Open a span inside the current one, or inside the span that the `parent` headers name unless they are None.

        An exception that leaves the context marks the span as failed, with the class of the exception only.
        """
        with self._tracer.start_as_current_span(
            name,
            context=None if parent is None else _PROPAGATOR.extract(parent),
            kind=_KINDS[kind],
            # The exception's message may quote a memory.
            record_exception=False,
            set_status_on_exception=False,
        ) as opened:
            span = _Span(opened)
            try:
                yield span
            except BaseException as error:
                span.fail(type(error).__name__)
                raise

    async def close(self) -> None:
        """Export the remaining spans, for at most 5 s.

        The SDK alone would retry for longer than a shutdown may take.
        """
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        deadline_s = time.monotonic() + CLOSING_S
        while closing.is_alive() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)


class _Span:
    """Implements ports.Span."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def headers(self) -> Mapping[str, str]:
        """`traceparent` and `tracestate` of this span."""
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, trace.set_span_in_context(self._span))
        return headers

    def note(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def fail(self, kind: str) -> None:
        """Set the status to ERROR, and the attribute `error.type` to `kind`."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(trace.StatusCode.ERROR)
