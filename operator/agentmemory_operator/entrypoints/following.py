"""Sources to feeds: a cluster's or a folder's events go to whoever runs in this process."""

from collections.abc import Sequence
from typing import Protocol

from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.manifest_folder import ManifestFolder
from agentmemory_operator.entrypoints.operating import Operated
from agentmemory_operator.ports import Json
from agentmemory_operator.services.feeds import ApiFeed
from agentmemory_operator.services.objects import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.services.standing import Standing

# What the API reads.
KINDS = (QDRANT_CONNECTION, AGENT_MEMORY)


class Served(Protocol):
    """What main composes of the retrieval half."""

    feed: ApiFeed
    standing: Standing


def sources(namespaces: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what the API reads each by itself: each kind of each namespace; an empty one is all, as none named is."""
    return [(kind, namespace) for kind in KINDS for namespace in namespaces or ("",)]


async def follow(api: Served, cluster: KubernetesCluster, kind: str, namespace: str) -> None:
    """Feed one kind's objects, of one namespace or of all, to the API, for ever."""
    source = kind, namespace
    async for event, content in cluster.follow(kind, lambda: api.standing.heard(source), namespace=namespace):
        if isinstance(content, list):
            api.feed.take_list(kind, content, namespace=namespace)
            api.standing.synced(source)
        else:
            api.feed.take(event, content)


async def follow_folder(folder: ManifestFolder, api: Served, operator: Operated | None) -> None:
    """Feed a folder's objects to the API, and to the operator where it runs here too."""
    async for events in folder.follow():
        for event, document in events:
            feed_all(event, document, api, operator)
        for source in sources():
            api.standing.synced(source)


async def pass_on(folder: ManifestFolder, api: Served, operator: Operated) -> None:
    """Feed what the operator itself made of the folder's objects: created, deleted, released."""
    while True:
        event, document = await folder.caused()
        feed_all(event, document, api, operator)


def feed_all(event: str, document: Json, api: Served, operator: Operated | None) -> None:
    """Feed one event to whoever runs here."""
    if document["kind"] in KINDS:
        api.feed.take(event, document)
    if operator is not None:
        operator.feed.take(event, document)
