"""The replicas of collections in a cluster: where they are, and the calls that copy and drop them."""

from collections.abc import Mapping
from typing import Any

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.collections.rules.replicas import CopyReplica, DropReplica, Move, Placement
from agentmemory_operator.errors import NotFound, StoreRejected
from agentmemory_operator.spec.printable import printable_start

# What a server answers that has no such call, or, with 405, is alone.
NO_CALL = (404, 405, 501)


class QdrantReplicas:
    """Asks one server, any of its cluster.

    Args:
        qdrant: the client of that server.
    """

    def __init__(self, qdrant: QdrantControl) -> None:
        self._qdrant = qdrant
        self._peers: tuple[int, ...] | None = None
        self._can_move = True

    async def peers(self) -> tuple[int, ...] | None:
        """The numbers of the cluster's peers, none of a server that is alone; None where the key may not ask."""
        try:
            told = await result_of(self._qdrant.cluster.cluster_status())
        except (NotFound, StoreRejected):
            self._peers = ()
            return None
        with understood():
            self._peers = tuple(sorted(map(int, told["peers"]))) if told["status"] == "enabled" else ()
        return self._peers

    async def placement(self, physical: str) -> Placement | None:
        """Where a collection's replicas are; None of a server that is alone or does not tell.

        A server that was alone when it was last asked is not asked again: who probes it does.

        Raises:
            NotFound: there is no such collection.
        """
        if self._peers == () or not (peers := await self.peers()):
            return None
        try:
            told = await result_of(self._qdrant.cluster.collection_cluster_info(physical))
        except StoreRejected:
            return None
        with understood():
            return _placement(told, peers, can_move=self._can_move)

    async def move(self, physical: str, move: Move) -> bool:
        """Begin to copy a replica by the method that the server is set up for, or drop one.

        Returns:
            False where the server has no such call.
        """
        try:
            await self._qdrant.cluster.update_collection_cluster(physical, cluster_operations=_operation_of(move))
        except (NotFound, StoreRejected) as exc:
            if isinstance(exc, StoreRejected) and exc.status not in NO_CALL:
                raise
            # Raises where it is the collection that is not there.
            await self._qdrant.cluster.collection_cluster_info(physical)
            self._can_move = False
        return self._can_move


def _operation_of(move: Move) -> models.ClusterOperations:
    match move:
        case CopyReplica(shard, source, target):
            copied = models.ReplicateShard(shard_id=shard, from_peer_id=source, to_peer_id=target)
            return models.ReplicateShardOperation(replicate_shard=copied)
        case DropReplica(shard, peer):
            return models.DropReplicaOperation(drop_replica=models.Replica(shard_id=shard, peer_id=peer))


def states_of(told: Mapping[str, Any]) -> dict[int, dict[int, str]]:
    """The state of each replica by its shard and peer, the asked node's own first."""
    own, shards = int(told["peer_id"]), dict[int, dict[int, str]]()
    for each in (*told["local_shards"], *told["remote_shards"]):
        peer = int(each.get("peer_id", own))
        shards.setdefault(int(each["shard_id"]), {})[peer] = printable_start(str(each["state"]))
    return shards


def _placement(told: Mapping[str, Any], peers: tuple[int, ...], *, can_move: bool) -> Placement:
    copying = tuple(
        CopyReplica(int(each["shard_id"]), int(each["from"]), int(each["to"]))
        for each in told.get("shard_transfers") or ()
    )
    return Placement(peers=peers, shards=states_of(told), copying=copying, can_move=can_move)
