"""Shared parts of the commands that run a server: shutdown, listen address, output and traces."""

import asyncio
import signal
from contextlib import AsyncExitStack

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.runtime.tasks import cancel
from agentmemory_operator.settings import Settings

LOOPBACK, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"


async def wait_until_stopped(*tasks: asyncio.Task[None]) -> None:
    """Wait for SIGTERM or SIGINT. If a task ends before, re-raise its error, or return if it has none."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stop_task: asyncio.Task[object] = asyncio.create_task(stopped.wait())
    done, _ = await asyncio.wait([stop_task, *tasks], return_when=asyncio.FIRST_COMPLETED)
    await cancel(stop_task)
    for task in done - {stop_task}:
        task.result()


def default_host(settings: Settings) -> str:
    """Return all interfaces in a cluster, loopback elsewhere."""
    return ALL_INTERFACES if settings.is_in_cluster else LOOPBACK


def print_line(line: str) -> None:
    """Print a line to stdout and flush it; users and scripts wait for these lines."""
    print(line, flush=True)


def open_tracer(settings: Settings, stack: AsyncExitStack, *, service: str) -> Tracer:
    """Open the tracer; the stack closes it. The tracer does nothing unless traces are configured.

    Raises:
        AgentMemoryError: If traces are configured and the OpenTelemetry SDK is not installed.
    """
    if not settings.exports_traces:
        return NO_TRACES
    # Import here, because the SDK is an optional dependency.
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
