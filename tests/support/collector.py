"""An OTLP/HTTP receiver that keeps what it is sent."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Collector:
    """The application and what came, in order."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        return Response(status_code=200, media_type="application/x-protobuf")

    def spans(self) -> list[tuple[str, Span]]:
        """Return every span with the name of its service."""
        return [
            (attributes_of(resource.resource)["service.name"], span)
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes_of(holder: Any) -> dict[str, Any]:
    values = ((entry.key, entry.value) for entry in holder.attributes)
    return {key: value.int_value if value.HasField("int_value") else value.string_value for key, value in values}
