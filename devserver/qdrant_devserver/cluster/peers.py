"""Simulated cluster: one process and one engine, with a port for each peer, so clients see shards and replicas.

A shard is the slice of the collection's points with certain ids. Replicas are only states, not copies. Two things
belong to a single peer, as on real nodes: its snapshot files, and the list of its local shards.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass

import qdrant_edge as edge

from qdrant_devserver.error_answers import not_found, wrong_input
from qdrant_devserver.fields import Document
from qdrant_devserver.storage.collection import Record, ServedCollection
from qdrant_devserver.storage.snapshot_files import SnapshotFiles

ACTIVE, DEAD, PARTIAL, RECOVERING = "Active", "Dead", "Partial", "ManualRecovery"
INITIALIZING = "Initializing"
# Base of the internal ports that real peers use among themselves. Nothing listens on them.
_INTERNAL_PORT = 6335


@dataclass(frozen=True, slots=True)
class Simulation:
    """Parameters of a simulated cluster.

    Attributes:
        peers: Number of peers; 1 simulates no cluster.
        activation_s: Seconds until the replicas of a recovered shard are active.
    """

    peers: int = 1
    activation_s: float = 0.0


SINGLE_SERVER = Simulation()


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of the cluster.

    Attributes:
        number: Peer id, from 1.
        files: Snapshot files of the peer.
    """

    number: int
    files: SnapshotFiles


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """The peers of this process. A single peer is no cluster.

    Attributes:
        activation_s: Seconds from a shard's recovery until all its replicas are active.
    """

    peers: tuple[Peer, ...]
    activation_s: float

    @property
    def is_enabled(self) -> bool:
        """True if there are several peers."""
        return len(self.peers) > 1

    def place_replicas(self, configuration: Document) -> dict[str, dict[str, str]]:
        """Place the replicas of a new collection; return shard -> peer -> state. Empty for a single server."""
        if not self.is_enabled:
            return {}
        params, count = configuration["params"], len(self.peers)
        factor = min(params["replication_factor"], count)
        return {
            str(shard): {str((shard + offset) % count + 1): ACTIVE for offset in range(factor)}
            for shard in range(params["shard_number"])
        }

    def describe(self, peer: Peer) -> Document:
        """Build the response of `GET /cluster`. Peer 1 is always the leader; the other Raft figures are constant."""
        if not self.is_enabled:
            return {"status": "disabled"}
        return {
            "status": "enabled",
            "peer_id": peer.number,
            "peers": {
                str(each.number): {"uri": f"http://127.0.0.1:{_INTERNAL_PORT + each.number}/"} for each in self.peers
            },
            "raft_info": {
                "term": 1,
                "commit": 1,
                "pending_operations": 0,
                "leader": 1,
                "role": "Leader" if peer.number == 1 else "Follower",
                "is_voter": True,
            },
            "consensus_thread_status": {"consensus_thread_status": "working", "last_update": "1970-01-01T00:00:00Z"},
            "message_send_failures": {},
        }


def open_cluster(data_dir: pathlib.Path, simulation: Simulation) -> SimulatedCluster:
    """Open the peers of a data folder and remove their unfinished snapshots."""
    folders = [data_dir, *(data_dir / "peers" / str(number) for number in range(2, simulation.peers + 1))]
    opened = tuple(Peer(number, SnapshotFiles(folder)) for number, folder in enumerate(folders, 1))
    for peer in opened:
        peer.files.load()
    return SimulatedCluster(opened, simulation.activation_s if simulation.peers > 1 else 0.0)


def shard_count(record: Record) -> int:
    """Return the number of shards of a collection."""
    count: int = record.configuration["params"]["shard_number"]
    return count


def replicas_of(record: Record) -> dict[int, dict[int, str]]:
    """Return the replicas of each shard: peer -> state. On a single server, all are active on peer 1."""
    if not record.replicas:
        return {shard: {1: ACTIVE} for shard in range(shard_count(record))}
    return {
        int(shard): {int(peer): state for peer, state in replicas.items()}
        for shard, replicas in record.replicas.items()
    }


def set_replicas(record: Record, shard: int, states: Mapping[int, str]) -> None:
    """Set the states of all replicas of a shard in the record, without saving the record."""
    changed = replicas_of(record) | {shard: dict(states)}
    record.replicas = {
        str(each): {str(peer): state for peer, state in replicas.items()} for each, replicas in changed.items()
    }


def local_shards(record: Record, peer: Peer) -> tuple[int, ...]:
    """Return the numbers of the shards of which a peer has a replica, in any state."""
    return tuple(shard for shard, replicas in replicas_of(record).items() if peer.number in replicas)


def check_local(collection: ServedCollection, shard: int, peer: Peer) -> None:
    """Raise unless the peer has the shard.

    Raises:
        ErrorAnswer: 404 if the collection has no such shard or it is still initializing; 400 if only other peers have
            it.
    """
    state = replicas_of(collection.record).get(shard, {}).get(peer.number)
    if shard >= shard_count(collection.record) or state == INITIALIZING:
        raise not_found(f"Shard {shard} not found")
    if shard not in local_shards(collection.record, peer):
        raise wrong_input(f"Shard {shard} is not a local or queue proxy shard")


def shard_filter(shard: int, count: int) -> edge.Filter:
    """Build the engine's filter for the points of a shard."""
    # The engine's type stub lacks the class.
    return edge.Filter(must=[edge.SliceCondition(count, shard)])  # type: ignore[attr-defined]


def describe_shards(collection: ServedCollection, peer: Peer, points: Mapping[int, int]) -> Document:
    """Build the response of `GET /collections/{name}/cluster`, without the requested transfers.

    Args:
        points: Number of points of each shard.
    """
    replicas = replicas_of(collection.record)
    return {
        "peer_id": peer.number,
        "shard_count": len(replicas),
        "local_shards": [
            {"shard_id": shard, "points_count": points[shard], "state": states[peer.number]}
            for shard, states in replicas.items()
            if peer.number in states
        ],
        "remote_shards": [
            {"shard_id": shard, "peer_id": other, "state": state}
            for shard, states in replicas.items()
            for other, state in states.items()
            if other != peer.number
        ],
        "shard_transfers": [
            {"shard_id": shard, "from": source, "to": other, "sync": True, "method": "stream_records"}
            for shard, states in replicas.items()
            for other, state in states.items()
            if state == PARTIAL
            and not any(transfer.shard == shard for transfer in collection.transfers)
            and (source := next((each for each in states if states[each] == ACTIVE), None))
        ],
    }
