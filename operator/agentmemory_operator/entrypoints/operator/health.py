"""The operator's probes and metrics over HTTP."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentmemory_operator.spec.printable import printable_lines

# Longer than any pass: each call in it ends after at most 300 s.
STUCK_S = 900.0


@dataclass(frozen=True, slots=True)
class Probes:
    """What the endpoints ask.

    Attributes:
        stuck_s: for how many seconds work has waited without any pass beginning or ending.
        why_not_ready: what keeps everything from being listed and watched, None when nothing does; a standby is ready.
        render_metrics: the metrics as text.
    """

    stuck_s: Callable[[], float]
    why_not_ready: Callable[[], str | None]
    render_metrics: Callable[[], bytes]


def create_health_app(probes: Probes) -> Starlette:
    """The application with `/healthz`, `/readyz` and `/metrics`."""

    async def healthz(_: Request) -> Response:
        # That this answers shows that the event loop turns.
        stuck_s = probes.stuck_s()
        return _told(stuck_s < STUCK_S, "ok", f"objects are queued, but no pass started or ended for {stuck_s:.0f} s")

    async def readyz(_: Request) -> Response:
        why = probes.why_not_ready()
        return _told(why is None, "ok", printable_lines(why or ""))

    async def metrics(_: Request) -> Response:
        return Response(probes.render_metrics(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    routes = (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics))
    return Starlette(routes=[Route(path, answer) for path, answer in routes])


def _told(holds: bool, good: str, bad: str) -> Response:
    return PlainTextResponse((good if holds else bad) + "\n", 200 if holds else 503)
