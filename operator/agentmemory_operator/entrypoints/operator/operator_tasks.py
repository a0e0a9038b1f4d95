"""Lifecycle of the operator process.

1. List all objects; retry for up to 120 s while the API server or the CRDs are missing.
2. Start the watches. From here on the process is ready.
3. Concurrently with step 2, wait for the lease, then run the passes and the other tasks that write.
4. If a task or the watches end, or on SIGTERM or SIGINT: stop all tasks, release the lease, raise the error if any.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.transport import Configuration
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, TransientError
from agentmemory_operator.ports.access import SigningKeyMaker
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, QDRANT_CONNECTION
from agentmemory_operator.runtime.tasks import cancel, race

log = logging.getLogger(__name__)

# Kinds that are listed before the first pass: a pass compares all objects, for example to find the owner of a slug.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY, MEMORY_SNAPSHOT, MEMORY_RESTORE)
LIST_RETRY_S = 2.0
# Kubernetes controllers wait for their first lists for the same time.
STARTUP_TIMEOUT_S = 120.0


class Startup:
    """Startup state for the readiness probe, with a time limit for missing prerequisites.

    Args:
        patience_s: Seconds for which the API server or CRDs may be missing. An installation applies its parts in any
            order.
        now_s: Monotonic clock in seconds.

    Attributes:
        ready: Set when all objects are listed and the watches start.
    """

    def __init__(self, patience_s: float = STARTUP_TIMEOUT_S, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.ready = asyncio.Event()
        self._patience_s, self._now_s = patience_s, now_s
        self._began_s = now_s()
        self._trouble = ""

    def find_obstacle(self) -> str | None:
        """Return the reason why the operator is not ready, or None."""
        if self.ready.is_set():
            return None
        return f"objects are not listed yet{': ' if self._trouble else ''}{self._trouble}"

    def record_missing(self, problem: str) -> None:
        """Record a missing prerequisite, and log it if it differs from the last one.

        Raises:
            AgentMemoryError: If the start has already waited for `patience_s`.
        """
        waited_s = self._now_s() - self._began_s
        known, self._trouble = self._trouble, problem
        if waited_s >= self._patience_s:
            raise AgentMemoryError(f"gave up after {waited_s:.0f} s: {problem}")
        if problem != known:
            log.warning("%s; waiting for up to %.0f s", problem, self._patience_s - waited_s)


class ReconcilingOperator(Protocol):
    """The operator as composed by `main`.

    Attributes:
        handover: Copies Secrets to the retrieval API. None if the API reads them itself.
        signing_key: Creates the signing key of user tokens. None if the API creates it.
    """

    feed: OperatorFeed
    periods: Periods
    handover: AgentSecrets | None
    signing_key: SigningKeyMaker | None

    async def run(self) -> None:
        """Run all queues and sweepers until cancelled."""
        ...


async def operate(
    operator: ReconcilingOperator,
    cluster: KubernetesCluster,
    configuration: Configuration,
    *,
    leadership: Leadership | None = None,
    namespaces: Sequence[str] = (),
    startup: Startup | None = None,
) -> None:
    """Reconcile the objects of a cluster until SIGTERM or SIGINT.

    Args:
        leadership: Passes run only while it is held; a standby only lists and watches. None runs them immediately.
        namespaces: Namespaces to watch; empty watches all.
        startup: Records missing prerequisites, and the start of the watches. None creates one with a limit of 120 s.

    Raises:
        AgentMemoryError: If the objects cannot be listed in time, or the lease cannot be read or written for 120 s.
        LeadershipLost: If the lease is lost. The process must exit.
        Exception: Any other error that has ended a task or the watches.
    """
    # Imported here, because other commands do not need kopf and its dependencies.
    from agentmemory_operator.entrypoints.operator.handlers import build_registry, run_kopf

    startup = startup or Startup()
    await list_all_objects(operator.feed, cluster, startup)
    tasks = start_background(operator, cluster, leadership, namespaces)

    async def stop() -> None:
        await cancel(*tasks)
        if leadership is not None:
            await leadership.release()

    scope = f"namespaces {', '.join(namespaces)}" if namespaces else "the whole cluster"
    log.info("watching %s of %s", ", ".join(KINDS), scope)
    registry = build_registry(operator.feed, configuration, on_stop=stop)
    watching = asyncio.create_task(run_kopf(registry, namespaces, started=startup.ready))
    await wait_for_first_end(tasks, watching, stop)


def start_background(
    operator: ReconcilingOperator, cluster: KubernetesCluster, leadership: Leadership | None, namespaces: Sequence[str]
) -> tuple[asyncio.Task[None], ...]:
    """Start two tasks and return them: one that writes while this process leads, and `resync`, which needs no lease.

    Args:
        leadership: None starts the writing immediately.
        namespaces: Namespaces that the operator watches; empty is all.
    """
    period_s = operator.periods.resync_s
    runs = [operator.run()]
    if operator.handover is not None:
        runs.append(sweep_secrets(operator.handover, cluster, namespaces, period_s=period_s))
    if operator.signing_key is not None:
        runs.append(keep_signing_key(operator.signing_key, period_s=period_s))
    working = asyncio.create_task(run_while_leading(runs, leadership))
    return working, asyncio.create_task(resync(operator.feed, cluster, period_s=period_s))


async def wait_for_first_end(
    tasks: Sequence[asyncio.Task[None]], watch_task: asyncio.Task[None], stop: Callable[[], Awaitable[None]]
) -> None:
    """Wait until the watches or a task end. Then call `stop`, stop the watches, and raise the error of any of them.

    Args:
        stop: Stops `tasks`, then releases the lease.
    """
    for task in tasks:
        task.add_done_callback(lambda ended: None if ended.cancelled() else watch_task.cancel())
    try:
        await asyncio.wait([watch_task])
    finally:
        await stop()
        await cancel(watch_task)
    for task in (*tasks, watch_task):
        if not task.cancelled():
            task.result()


async def run_while_leading(runs: Sequence[Coroutine[Any, Any, None]], leadership: Leadership | None) -> None:
    """Wait for the lease, then run everything that writes until the lease is lost or a run ends.

    Args:
        leadership: None starts the runs immediately.

    Raises:
        AgentMemoryError: If the lease cannot be read or written for 120 s while this process waits for it.
        LeadershipLost: If the lease is lost.
        Exception: The error of a run that failed.
    """
    if leadership is None:
        await race(*runs)
        return
    try:
        await leadership.acquire()
    except BaseException:
        for run in runs:
            run.close()
        raise
    log.info("became the leader: this process reconciles now")
    await race(*runs, leadership.keep())


async def sweep_secrets(
    handover: AgentSecrets, cluster: KubernetesCluster, namespaces: Sequence[str], *, period_s: float
) -> None:
    """Delete the Secret copies of deleted agents, now and every `period_s` seconds.

    A TransientError is only logged, except LeadershipLost, which is raised.

    Args:
        namespaces: Namespaces that the operator watches; empty is all.
    """
    while True:
        try:
            listed = await handover.store.list_all()
            await handover.sweep(listed, await cluster.list_all(AGENT_MEMORY), namespaces)
        except LeadershipLost:
            raise
        except TransientError as exc:
            log.warning("cannot look for Secrets of deleted agents: %s; retrying in %.0f s", exc, period_s)
        await asyncio.sleep(period_s)


async def keep_signing_key(key: SigningKeyMaker, *, period_s: float) -> None:
    """Create the signing key of user tokens if it is missing, now and every `period_s` seconds.

    After a TransientError, which is logged, it retries after at most 2 s. LeadershipLost is raised.
    """
    while True:
        pause_s = period_s
        try:
            await key.make_missing()
        except LeadershipLost:
            raise
        except TransientError as exc:
            pause_s = min(period_s, LIST_RETRY_S)
            log.warning("cannot store the key for user tokens: %s; retrying in %.0f s", exc, pause_s)
        await asyncio.sleep(pause_s)


async def resync(feed: OperatorFeed, cluster: KubernetesCluster, *, period_s: float) -> None:
    """Drop objects that were deleted while no watch was open, every `period_s` seconds.

    kopf does not report these deletions. A kind that cannot be listed is logged and skipped until the next time.
    """
    while True:
        await asyncio.sleep(period_s)
        for kind in KINDS:
            uids = feed.read_uids(kind)
            try:
                documents = await cluster.list_all(kind)
            except TransientError as exc:
                log.warning("cannot list %s: %s; again in %.0f s", kind, exc, period_s)
            else:
                feed.drop_absent(uids, documents)


async def list_all_objects(feed: OperatorFeed, cluster: KubernetesCluster, startup: Startup) -> None:
    """List every object before the first pass, because the owner of a slug is decided among all of them.

    Of each kind, objects with an unfinished one-off operation are fed first.

    Raises:
        AgentMemoryError: If the objects cannot be listed within `patience_s` of `startup`. The message gives the cause.
    """
    for kind in KINDS:
        while True:
            try:
                await cluster.check_served()
                documents = await cluster.list_all(kind)
            except TransientError as exc:
                startup.record_missing(f"cannot list {kind}: {exc}")
                await asyncio.sleep(LIST_RETRY_S)
            else:
                break
        for document in sorted(documents, key=is_in_progress, reverse=True):
            feed.take("ADDED", document)


def is_in_progress(document: Json) -> bool:
    """Return whether a snapshot or restore has started and not ended. It continues before new ones start."""
    status = document.get("status") or {}
    return bool(status.get("startTime")) and not status.get("endTime")
