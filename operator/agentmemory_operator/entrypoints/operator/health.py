"""Probes and metrics of the operator over HTTP."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentmemory_operator.spec.printable import printable_lines

# Seconds without a pass after which queued objects count as stuck: three times the longest timeout of a call.
STUCK_S = 900.0


@dataclass(frozen=True, slots=True)
class Probes:
    """Sources of the endpoints' results.

    Attributes:
        stuck_s: Returns the seconds for which passes have been queued or running while none started or ended.
        find_obstacle: Returns the reason why the objects are not all listed and watched, or None. A standby is ready.
        render_metrics: Returns the metrics in the Prometheus text format.
    """

    stuck_s: Callable[[], float]
    find_obstacle: Callable[[], str | None]
    render_metrics: Callable[[], bytes]


def create_health_app(probes: Probes) -> Starlette:
    """Build the application with `/healthz`, `/readyz` and `/metrics`. A failed probe responds 503 with the reason."""

    async def healthz(_: Request) -> Response:
        # Check only the passes, because the response itself proves that the event loop runs.
        stuck_s = probes.stuck_s()
        fault = f"objects are queued, but no pass started or ended for {stuck_s:.0f} s"
        return _probe_response(fault if stuck_s >= STUCK_S else None)

    async def readyz(_: Request) -> Response:
        return _probe_response(probes.find_obstacle())

    async def metrics(_: Request) -> Response:
        return Response(probes.render_metrics(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    routes = (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics))
    return Starlette(routes=[Route(path, handler) for path, handler in routes])


def _probe_response(fault: str | None) -> Response:
    return PlainTextResponse("ok\n" if fault is None else printable_lines(fault) + "\n", 200 if fault is None else 503)
