"""The operator's life: list, watch, wait for the lease, work, stop in good order."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.transport import Configuration
from agentmemory_operator.connections.handover import Handover
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, TransientError
from agentmemory_operator.ports.access import SigningKeyMaker
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, QDRANT_CONNECTION
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.runtime.tasks import cancel, race

log = logging.getLogger(__name__)

# What is read first: who owns a slug, and what a snapshot or a restore is for, is decided among all of them.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY, MEMORY_SNAPSHOT, MEMORY_RESTORE)
LIST_RETRY_S = 2.0
# As controllers of Kubernetes wait for their first lists.
PATIENCE_S = 120.0


class Startup:
    """How far the start is, for the probe; ends a start that gets no further.

    Args:
        patience_s: for how long what is missing is waited for: an installation applies its parts in any order.

    Attributes:
        ready: set when everything was listed and the watches begin.
    """

    def __init__(self, patience_s: float = PATIENCE_S, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.ready = asyncio.Event()
        self._patience_s, self._now_s = patience_s, now_s
        self._began_s = now_s()
        self._trouble = ""

    def why_not_ready(self) -> str | None:
        """What keeps the operator from working, None when nothing does."""
        if self.ready.is_set():
            return None
        return f"objects are not listed yet{': ' if self._trouble else ''}{self._trouble}"

    def wait_for(self, trouble: str) -> None:
        """Note what is missing, and log it where it is another thing than before.

        Raises:
            AgentMemoryError: it was waited for long enough.
        """
        waited_s = self._now_s() - self._began_s
        if waited_s >= self._patience_s:
            raise AgentMemoryError(f"gave up after {waited_s:.0f} s: {trouble}")
        if trouble != self._trouble:
            log.warning("%s; waiting for up to %.0f s", trouble, self._patience_s - waited_s)
        self._trouble = trouble


class Operated(Protocol):
    """What main composes of the reconcile half."""

    feed: OperatorFeed
    periods: Periods
    handover: Handover | None
    signing_key: SigningKeyMaker | None

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
    startup: Startup | None = None,
) -> None:
    """Work on the objects of a cluster until SIGTERM or SIGINT.

    Args:
        leadership: passes run only while it is held; a standby lists and watches meanwhile. None works at once.
        namespaces: those to watch; none is all.
        startup: told what the start waits for, and that everything was listed and the watches begin.

    Raises:
        AgentMemoryError: the objects cannot be read.
        LeadershipLost: the process has to end.
    """
    # kopf and its imports are of no use to the other verbs.
    from agentmemory_operator.entrypoints.operator.handlers import build_registry, run_kopf

    startup = startup or Startup()
    await fill(operator.feed, cluster, startup)
    tasks = begin(operator, cluster, leadership, namespaces)

    async def stop() -> None:
        await cancel(*tasks)
        if leadership is not None:
            await leadership.release()

    where = f"namespaces {', '.join(namespaces)}" if namespaces else "the whole cluster"
    log.info("watching %s of %s", ", ".join(KINDS), where)
    registry = build_registry(operator.feed, configuration, on_stop=stop)
    watching = asyncio.create_task(run_kopf(registry, namespaces, started=startup.ready))
    await until_any_ends(tasks, watching, stop)


def begin(
    operator: Operated, cluster: KubernetesCluster, leadership: Leadership | None, namespaces: Sequence[str]
) -> tuple[asyncio.Task[None], ...]:
    """Begin what goes on beside the watches: the work, and the look for what they missed."""
    period_s = operator.periods.resync_s
    runs = [operator.run()]
    if operator.handover is not None:
        runs.append(sweep(operator.handover, cluster, namespaces, period_s=period_s))
    if operator.signing_key is not None:
        runs.append(keep_signing_key(operator.signing_key, period_s=period_s))
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
    log.info("became the leader: this process reconciles now")
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
            log.warning("cannot look for Secrets of deleted agents: %s; retrying in %.0f s", exc, period_s)
        await asyncio.sleep(period_s)


async def keep_signing_key(key: SigningKeyMaker, *, period_s: float) -> None:
    """Look, for ever, whether there is what the API signs user tokens with, and make it where there is none."""
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


async def fill(feed: OperatorFeed, cluster: KubernetesCluster, startup: Startup) -> None:
    """Read every object once before the first pass: who owns a slug is decided among all of them.

    Raises:
        AgentMemoryError: they could not be read for `PATIENCE_S`; says what is missing.
    """
    for kind in KINDS:
        while True:
            try:
                await cluster.check_served()
                documents = await cluster.list_all(kind)
            except TransientError as exc:
                startup.wait_for(f"cannot list {kind}: {exc}")
                await asyncio.sleep(LIST_RETRY_S)
            else:
                break
        for document in sorted(documents, key=is_under_way, reverse=True):
            feed.take("ADDED", document)


def is_under_way(document: Json) -> bool:
    """Whether something that is done once was begun and not ended: it is gone on with before more is begun."""
    status = document.get("status") or {}
    return bool(status.get("startTime")) and not status.get("endTime")
