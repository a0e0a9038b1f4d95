"""Feed the events of a cluster to the API, or those of a manifest folder to the API and operator of this process."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.agents.agent_objects import JOB_KINDS
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.agents.readiness import Readiness
from agentmemory_operator.collections.rules.claims import ClaimSet
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.runtime.tasks import run_in_slices

# Imported for types only: a cluster needs no folder reader, and each import delays the start.
if TYPE_CHECKING:
    from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder

# Kinds that the API cannot serve without. It also reads those of `JOB_KINDS`, to show them.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY)
JOBS_RETRY_S = 30.0
"""Seconds between two attempts to watch a kind of `JOB_KINDS`: the account may lack the right for good."""
CLAIMS = ("claims", "")
"""Source that readiness waits for in addition to those of `sources`: the claims, which map slugs to namespaces."""


class ApiProcess(Protocol):
    """The API as composed by `main`."""

    feed: ApiFeed
    readiness: Readiness


class OperatorProcess(Protocol):
    """The operator as composed by `main`."""

    feed: OperatorFeed


def sources(namespaces: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the sources that the API follows, as pairs of kind and namespace; '' stands for all namespaces."""
    return [(kind, namespace) for kind in KINDS for namespace in namespaces or ("",)]


async def follow(api: ApiProcess, cluster: KubernetesCluster, kind: str, namespace: str) -> None:
    """Feed the objects of one source to the API until cancelled, and record lists, activity and failures for readiness.

    Args:
        namespace: Namespace to watch; '' watches all.
    """
    key = kind, namespace
    on_activity, on_failure = (partial(api.readiness.record_activity, key), partial(api.readiness.record_failure, key))
    async for event, content in cluster.follow(kind, on_activity, on_failure=on_failure, namespace=namespace):
        if isinstance(content, list):
            api.feed.apply_list(kind, content, namespace=namespace)
            api.readiness.record_synced(key)
        else:
            api.feed.apply_event(event, content)


async def follow_jobs(api: ApiProcess, cluster: KubernetesCluster, kind: str, namespace: str) -> None:
    """Feed the snapshots or restores of a namespace, '' for all, to the API until cancelled.

    The API serves agents without them, so readiness does not depend on them.
    """
    async for event, content in cluster.follow(kind, namespace=namespace, retry_s=JOBS_RETRY_S):
        if isinstance(content, list):
            await run_in_slices(api.feed.iter_list(kind, content, namespace=namespace))
        else:
            api.feed.apply_event(event, content)


async def feed_claims(api: ApiProcess, claims: AsyncGenerator[ClaimSet, None]) -> None:
    """Feed each set of claims to the API until cancelled, and record for readiness that claims were read."""
    async for found in claims:
        api.feed.apply_claims(found)
        api.readiness.record_synced(CLAIMS)


async def follow_folder(folder: "ManifestFolder", api: ApiProcess, operator: OperatorProcess | None) -> None:
    """Feed the events of a folder to the API, and to the operator if it runs in this process, until cancelled.

    For readiness, all sources count as read after the first events.
    """
    async for events in folder.follow():
        for event, document in events:
            feed_all(event, document, api, operator)
        for source in sources():
            api.readiness.record_synced(source)
        # Without an operator the folder has no statuses, and not all objects.
        for kind in JOB_KINDS if operator is not None else ():
            api.feed.record_list(kind)


async def feed_own_changes(folder: "ManifestFolder", api: ApiProcess, operator: OperatorProcess) -> None:
    """Feed the changes that the operator makes to the folder's objects, such as deletions, until cancelled."""
    while True:
        event, document = await folder.next_caused_event()
        feed_all(event, document, api, operator)


def feed_all(event: str, document: Json, api: ApiProcess, operator: OperatorProcess | None) -> None:
    """Feed one event to the API, and to the operator if it runs in this process."""
    api.feed.apply_event(event, document)
    if operator is not None:
        operator.feed.take(event, document)
