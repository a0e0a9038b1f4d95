"""Sources to feeds: a cluster's or a folder's events go to whoever runs in this process."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.agents.readiness import Readiness
from agentmemory_operator.collections.rules.claims import ClaimSet
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.cache import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.runtime.feed import OperatorFeed

# Not imported: what reads folders is of no use in a cluster, and the start waits for every import.
if TYPE_CHECKING:
    from agentmemory_operator.adapters.folder.objects import ManifestFolder

# What the API reads.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY)
CLAIMS = ("claims", "")
"""Which namespace each slug belongs to, as a source beside the kinds."""


class Served(Protocol):
    """What main composes of the retrieval half."""

    feed: ApiFeed
    readiness: Readiness


class Fed(Protocol):
    """What main composes of the reconcile half."""

    feed: OperatorFeed


def sources(namespaces: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What the API reads each by itself: each kind of each namespace; an empty one is all, as none named is."""
    return [(kind, namespace) for kind in KINDS for namespace in namespaces or ("",)]


async def follow(api: Served, cluster: KubernetesCluster, kind: str, namespace: str) -> None:
    """Feed one kind's objects, of one namespace or of all, to the API, for ever."""
    source = kind, namespace
    heard, failed = partial(api.readiness.heard, source), partial(api.readiness.failed, source)
    async for event, content in cluster.follow(kind, heard, failed=failed, namespace=namespace):
        if isinstance(content, list):
            api.feed.take_list(kind, content, namespace=namespace)
            api.readiness.synced(source)
        else:
            api.feed.take(event, content)


async def follow_claimed(api: Served, claims: AsyncGenerator[ClaimSet, None]) -> None:
    """Feed to the API which namespace each slug belongs to, for ever."""
    async for found in claims:
        api.feed.take_claims(found)
        api.readiness.synced(CLAIMS)


async def follow_folder(folder: "ManifestFolder", api: Served, operator: Fed | None) -> None:
    """Feed a folder's objects to the API, and to the operator where it runs here too."""
    async for events in folder.follow():
        for event, document in events:
            feed_all(event, document, api, operator)
        for source in sources():
            api.readiness.synced(source)


async def pass_on(folder: "ManifestFolder", api: Served, operator: Fed) -> None:
    """Feed what the operator itself made of the folder's objects: created, deleted, released."""
    while True:
        event, document = await folder.caused()
        feed_all(event, document, api, operator)


def feed_all(event: str, document: Json, api: Served, operator: Fed | None) -> None:
    """Feed one event to whoever runs here."""
    if document["kind"] in KINDS:
        api.feed.take(event, document)
    if operator is not None:
        operator.feed.take(event, document)
