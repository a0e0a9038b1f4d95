"""The operator's life: list, watch, wait for the lease, work, stop in good order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.transport import Configuration
from agentmemory_operator.connections.handover import Handover
from agentmemory_operator.controllers.agent_memory import Periods
from agentmemory_operator.errors import LeadershipLost, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, QDRANT_CONNECTION
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.leadership import Leadership

log = logging.getLogger(__name__)

# What is read first: who owns a slug, and what a snapshot or a restore is for, is decided among all of them.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY, MEMORY_SNAPSHOT, MEMORY_RESTORE)
LIST_RETRY_S = 2.0


class Operated(Protocol):
    """What main composes of the reconcile half."""

    feed: OperatorFeed
    periods: Periods
    handover: Handover | None

    async def run(self) -> None:
        """Work until cancelled."""
        ...


async def operate(
    operator: Operated,
    cluster: KubernetesCluster,
    configuration: Configuration,
    *,
    leadership: Leadership | None = None,
    namespaces: Sequence[str] = (),
    ready: asyncio.Event | None = None,
) -> None:
    """Work on the objects of a cluster until SIGTERM or SIGINT.

    Args:
        leadership: passes run only while it is held; a standby lists and watches meanwhile. None works at once.
        namespaces: those to watch; none is all.
        ready: set when everything was listed and the watches begin.

    Raises:
        LeadershipLost: the process has to end.
    """
    # kopf and its imports are of no use to the other verbs.
    from agentmemory_operator.entrypoints.operator.handlers import build_registry, run_kopf

    await fill(operator.feed, cluster)
    tasks = begin(operator, cluster, leadership, namespaces)

    async def stop() -> None:
        await cancel(*tasks)
        if leadership is not None:
            await leadership.release()

    where = f"namespaces {', '.join(namespaces)}" if namespaces else "the whole cluster"
    log.info("watching %s of %s", ", ".join(KINDS), where)
    registry = build_registry(operator.feed, configuration, on_stop=stop)
    watching = asyncio.create_task(run_kopf(registry, namespaces, started=ready))
    await until_any_ends(tasks, watching, stop)


def begin(
    operator: Operated, cluster: KubernetesCluster, leadership: Leadership | None, namespaces: Sequence[str]
) -> tuple[asyncio.Task[None], ...]:
    """Begin what goes on beside the watches: the work, and the look for what they missed."""
    period_s = operator.periods.resync_s
    runs = [operator.run()]
    if operator.handover is not None:
        runs.append(sweep(operator.handover, cluster, namespaces, period_s=period_s))
        runs.append(keep_signing_key(operator.handover, period_s=period_s))
    working = asyncio.create_task(work(runs, leadership))
    return working, asyncio.create_task(resync(operator.feed, cluster, period_s=period_s))


async def until_any_ends(
    tasks: Sequence[asyncio.Task[None]], watching: asyncio.Task[None], stop: Callable[[], Awaitable[None]]
) -> None:
    """Wait until the watches or a task ends, end the rest in good order, and raise what one of them raised.

    Args:
        stop: ends the tasks.
    """
    for task in tasks:
        task.add_done_callback(lambda ended: None if ended.cancelled() else watching.cancel())
    try:
        await asyncio.wait([watching])
    finally:
        await stop()
        await cancel(watching)
    for task in (*tasks, watching):
        if not task.cancelled():
            task.result()


async def work(runs: Sequence[Coroutine[Any, Any, None]], leadership: Leadership | None) -> None:
    """Run what changes something, once this process leads and for as long as it does."""
    if leadership is None:
        await race(*runs)
        return
    try:
        await leadership.acquire()
    except BaseException:
        for run in runs:
            run.close()
        raise
    log.info("leading: passes run in this process")
    await race(*runs, leadership.keep())


async def sweep(handover: Handover, cluster: KubernetesCluster, namespaces: Sequence[str], *, period_s: float) -> None:
    """Take back, for ever, what was handed over to agents that are gone."""
    while True:
        try:
            listed = await handover.store.list_all()
            await handover.sweep(listed, await cluster.list_all(AGENT_MEMORY), namespaces)
        except LeadershipLost:
            raise
        except TransientError as exc:
            log.warning("cannot look for Secrets of agents that are gone: %s; again in %.0f s", exc, period_s)
        await asyncio.sleep(period_s)


async def keep_signing_key(handover: Handover, *, period_s: float) -> None:
    """Look, for ever, whether there is what the API signs user tokens with, and make it where there is none."""
    while True:
        pause_s = period_s
        try:
            await handover.store.keep_signing_key()
        except LeadershipLost:
            raise
        except TransientError as exc:
            pause_s = min(period_s, LIST_RETRY_S)
            log.warning("cannot keep the key of user tokens: %s; again in %.0f s", exc, pause_s)
        await asyncio.sleep(pause_s)


async def resync(feed: OperatorFeed, cluster: KubernetesCluster, *, period_s: float) -> None:
    """Find objects whose deletion fell into a gap of the watch: kopf lists anew then, and tells nothing of them."""
    while True:
        await asyncio.sleep(period_s)
        for kind in KINDS:
            known = feed.known(kind)
            try:
                documents = await cluster.list_all(kind)
            except TransientError as exc:
                log.warning("cannot list %s: %s; again in %.0f s", kind, exc, period_s)
            else:
                feed.drop_absent(known, documents)


async def fill(feed: OperatorFeed, cluster: KubernetesCluster) -> None:
    """Read every object once before the first pass: who owns a slug is decided among all of them."""
    for kind in KINDS:
        while True:
            try:
                await cluster.check_served()
                documents = await cluster.list_all(kind)
            except TransientError as exc:
                log.warning("cannot list %s: %s (are the CRDs applied?); again in %.0f s", kind, exc, LIST_RETRY_S)
                await asyncio.sleep(LIST_RETRY_S)
            else:
                break
        for document in sorted(documents, key=is_under_way, reverse=True):
            feed.take("ADDED", document)


def is_under_way(document: Json) -> bool:
    """Whether something that is done once was begun and not ended: it is gone on with before more is begun."""
    status = document.get("status") or {}
    return bool(status.get("startTime")) and not status.get("endTime")


async def race(*runs: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, cancel the others, and raise what it raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in done:
        task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
