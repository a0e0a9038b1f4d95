"""A simulated cluster: one process, one engine, a port for each peer, so that what the API shows of shards is seen.

A shard is a slice of the collection's points by their ids, its replicas are states and no copies. What is of one node
on a real server is of one peer here: the files of snapshots, and which shards are local.
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
# Of the port on which real peers talk to each other; nothing listens there.
_INTERNAL_PORT = 6335


@dataclass(frozen=True, slots=True)
class Simulation:
    """How a cluster is simulated.

    Attributes:
        peers: how many servers; one alone is no cluster.
        activation_s: how long the replicas of a recovered shard take to be active.
    """

    peers: int = 1
    activation_s: float = 0.0


ALONE = Simulation()


@dataclass(frozen=True, slots=True)
class Peer:
    """One server of the cluster.

    Attributes:
        number: its id, counted from 1.
        files: its snapshots.
    """

    number: int
    files: SnapshotFiles


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """The servers of the process; one alone is none.

    Attributes:
        activation_s: time between a shard's recovery and all of its replicas being active.
    """

    peers: tuple[Peer, ...]
    activation_s: float

    @property
    def is_enabled(self) -> bool:
        """Whether there are several."""
        return len(self.peers) > 1

    def placed(self, configuration: Document) -> dict[str, dict[str, str]]:
        """Where the replicas of a new collection are: shard -> peer -> state."""
        if not self.is_enabled:
            return {}
        params, count = configuration["params"], len(self.peers)
        factor = min(params["replication_factor"], count)
        return {
            str(shard): {str((shard + offset) % count + 1): ACTIVE for offset in range(factor)}
            for shard in range(params["shard_number"])
        }

    def describe(self, peer: Peer) -> Document:
        """What `GET /cluster` says."""
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
    """The peers that work on a data folder, their leftovers swept."""
    folders = [data_dir, *(data_dir / "peers" / str(number) for number in range(2, simulation.peers + 1))]
    opened = tuple(Peer(number, SnapshotFiles(folder)) for number, folder in enumerate(folders, 1))
    for peer in opened:
        peer.files.load()
    return SimulatedCluster(opened, simulation.activation_s if simulation.peers > 1 else 0.0)


def shard_count(record: Record) -> int:
    """How many shards a collection has."""
    count: int = record.configuration["params"]["shard_number"]
    return count


def replicas_of(record: Record) -> dict[int, dict[int, str]]:
    """The replicas of each shard: peer -> state."""
    if not record.replicas:
        return {shard: {1: ACTIVE} for shard in range(shard_count(record))}
    return {
        int(shard): {int(peer): state for peer, state in replicas.items()}
        for shard, replicas in record.replicas.items()
    }


def set_replicas(record: Record, shard: int, states: Mapping[int, str]) -> None:
    """Say in what states the replicas of a shard are."""
    changed = replicas_of(record) | {shard: dict(states)}
    record.replicas = {
        str(each): {str(peer): state for peer, state in replicas.items()} for each, replicas in changed.items()
    }


def local_shards(record: Record, peer: Peer) -> tuple[int, ...]:
    """The shards of which a peer has a replica."""
    return tuple(shard for shard, replicas in replicas_of(record).items() if peer.number in replicas)


def check_local(collection: ServedCollection, shard: int, peer: Peer) -> None:
    """Refuse a shard that the collection, or this peer, does not have.

    Raises:
        ErrorAnswer: 404 for an unknown shard and one that is only being made, 400 for one of other peers.
    """
    state = replicas_of(collection.record).get(shard, {}).get(peer.number)
    if shard >= shard_count(collection.record) or state == INITIALIZING:
        raise not_found(f"Shard {shard} not found")
    if shard not in local_shards(collection.record, peer):
        raise wrong_input(f"Shard {shard} is not a local or queue proxy shard")


def points_of(shard: int, count: int) -> edge.Filter:
    """What the points of a shard meet."""
    # The engine's type stub forgot it.
    return edge.Filter(must=[edge.SliceCondition(count, shard)])  # type: ignore[attr-defined]


def describe_shards(collection: ServedCollection, peer: Peer, points: Mapping[int, int]) -> Document:
    """What `GET /collections/{name}/cluster` says, but for the transfers that were asked for.

    Args:
        points: of each shard.
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
