"""What every verb that serves shares: how it ends, where it listens, what it says and traces."""

import asyncio
import signal
from contextlib import AsyncExitStack

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.runtime.tasks import cancel
from agentmemory_operator.settings import Settings

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"


async def until_stopped(*tasks: asyncio.Task[None]) -> None:
    """Wait for SIGTERM or SIGINT; a task that ends before is an error and ends the process."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    waiting: asyncio.Task[object] = asyncio.create_task(stopped.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    await cancel(waiting)
    for task in done - {waiting}:
        task.result()


def default_host(settings: Settings) -> str:
    """Every address in a cluster, loopback elsewhere."""
    return EVERYWHERE if settings.is_in_cluster else LOOPBACK


def say(line: str) -> None:
    """Print a line that people, and scripts that start us, wait for."""
    print(line, flush=True)


def open_tracer(settings: Settings, stack: AsyncExitStack, *, service: str) -> Tracer:
    """What makes traces, closed with the stack.

    Raises:
        AgentMemoryError: Traces are wanted, but the SDK is not installed.
    """
    if not settings.exports_traces:
        return NO_TRACES
    # The SDK is imported only where traces are wanted.
    try:
        from agentmemory_operator.adapters.otlp_tracer import OtlpTracer
    except ModuleNotFoundError as exc:
        if not (exc.name or "").startswith("opentelemetry"):
            raise
        raise AgentMemoryError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry's SDK is not installed: install"
            " 'agentmemory-operator[otlp]', or unset it (OTEL_SDK_DISABLED=true turns traces off too)"
        ) from exc

    tracer = OtlpTracer(service)
    stack.push_async_callback(tracer.close)
    return tracer
