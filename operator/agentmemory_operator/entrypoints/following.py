"""Sources to feeds: a cluster's or a folder's events go to whoever runs in this process."""

from typing import Protocol

from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.manifest_folder import ManifestFolder
from agentmemory_operator.entrypoints.operating import KINDS, Operated
from agentmemory_operator.ports import Json
from agentmemory_operator.services.feeds import ApiFeed
from agentmemory_operator.services.standing import Standing


class Served(Protocol):
    """What main composes of the retrieval half."""

    feed: ApiFeed
    standing: Standing


async def follow(api: Served, cluster: KubernetesCluster, kind: str) -> None:
    """Feed one kind's objects to the API, for ever."""
    async for event, content in cluster.follow(kind, lambda: api.standing.heard(kind)):
        if isinstance(content, list):
            api.feed.take_list(kind, content)
            api.standing.synced(kind)
        else:
            api.feed.take(event, content)


async def follow_folder(folder: ManifestFolder, api: Served, operator: Operated | None) -> None:
    """Feed a folder's objects to the API, and to the operator where it runs here too."""
    async for events in folder.follow():
        for event, document in events:
            feed_all(event, document, api, operator)
        for kind in KINDS:
            api.standing.synced(kind)


async def pass_on(folder: ManifestFolder, api: Served, operator: Operated) -> None:
    """Feed objects whose last finalizer was removed."""
    while True:
        event, document = await folder.released()
        feed_all(event, document, api, operator)


def feed_all(event: str, document: Json, api: Served, operator: Operated | None) -> None:
    """Feed one event to whoever runs here."""
    api.feed.take(event, document)
    if operator is not None:
        operator.feed.take(event, document)
