"""Feed the events of a cluster or of a manifest folder to the API and the operator of this process."""

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

# Imported for types only: a cluster needs no folder reader, and each import delays the start.
if TYPE_CHECKING:
    from agentmemory_operator.adapters.folder.objects import ManifestFolder

# Kinds that the API reads.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY)
CLAIMS = ("claims", "")
"""Key of the claims (the namespace of each slug) as a source, in addition to the kinds."""


class Served(Protocol):
    """The API as composed by `main`."""

    feed: ApiFeed
    readiness: Readiness


class Fed(Protocol):
    """The operator as composed by `main`."""

    feed: OperatorFeed


def sources(namespaces: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the sources that the API follows, as pairs of kind and namespace; '' stands for all namespaces."""
    return [(kind, namespace) for kind in KINDS for namespace in namespaces or ("",)]


async def follow(api: Served, cluster: KubernetesCluster, kind: str, namespace: str) -> None:
    """Feed the objects of one source to the API until cancelled. An empty namespace means all."""
    source = kind, namespace
    heard, failed = partial(api.readiness.heard, source), partial(api.readiness.failed, source)
    async for event, content in cluster.follow(kind, heard, failed=failed, namespace=namespace):
        if isinstance(content, list):
            api.feed.take_list(kind, content, namespace=namespace)
            api.readiness.synced(source)
        else:
            api.feed.take(event, content)


async def follow_claimed(api: Served, claims: AsyncGenerator[ClaimSet, None]) -> None:
    """Feed the claims to the API until cancelled."""
    async for found in claims:
        api.feed.take_claims(found)
        api.readiness.synced(CLAIMS)


async def follow_folder(folder: "ManifestFolder", api: Served, operator: Fed | None) -> None:
    """Feed a folder's objects to the API, and to the operator if it runs in this process, until cancelled."""
    async for events in folder.follow():
        for event, document in events:
            feed_all(event, document, api, operator)
        for source in sources():
            api.readiness.synced(source)


async def pass_on(folder: "ManifestFolder", api: Served, operator: Fed) -> None:
    """Feed the changes that the operator makes to the folder's objects, such as deletions, until cancelled."""
    while True:
        event, document = await folder.caused()
        feed_all(event, document, api, operator)


def feed_all(event: str, document: Json, api: Served, operator: Fed | None) -> None:
    """Feed one event to the API, and to the operator if it runs in this process."""
    if document["kind"] in KINDS:
        api.feed.take(event, document)
    if operator is not None:
        operator.feed.take(event, document)
