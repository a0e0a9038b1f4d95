"""One collection: its stored record and its state in the running server."""

import asyncio
import pathlib
from dataclasses import dataclass, field

import qdrant_edge as edge

from qdrant_devserver.fields import Document, Json
from qdrant_devserver.storage.configuration import dense_vectors
from qdrant_devserver.storage.engine_configuration import rebuild_key
from qdrant_devserver.storage.files import read_json, write_json

RECORD = "collection.json"


@dataclass(slots=True)
class Summary:
    """Statistics of a collection's points, as the engine last reported them.

    Attributes:
        points: Number of points.
        indexed: Number of indexed vectors. It includes all sparse vectors, which are indexed when they are stored.
        sparse: Number of sparse vectors, including those of points deleted since the last optimization.
        segments: Number of segments.
        index_points: Number of points that have the field, for each payload index.
    """

    points: int = 0
    indexed: int = 0
    sparse: int = 0
    segments: int = 0
    index_points: dict[str, int] = field(default_factory=dict)

    @property
    def indexed_dense(self) -> int:
        """Number of indexed dense vectors, at least 0."""
        return max(0, self.indexed - self.sparse)


@dataclass(slots=True)
class Record:
    """Stored description of a collection, without its points. Released versions read it: field names must not change.

    Attributes:
        name: Name of the collection.
        configuration: As in the response of `GET /collections/{name}`.
        payload_schema: field -> `{"data_type", "params"?}`.
        generation: Number of the current engine folder; None until the first request for points.
        built: Configuration that the segments were last built with, see `rebuild_key`.
        indexed_base: Number of indexed dense vectors after the last optimization.
        left_plain: Number of points that the last optimization left unindexed on purpose.
        unsettled: Name of a vector for which the engine may differ from the configuration; None normally.
        replicas: shard -> peer -> state; empty for a single server.
    """

    name: str
    configuration: Document
    payload_schema: dict[str, Document] = field(default_factory=dict)
    generation: int | None = None
    built: Json = None
    indexed_base: int = 0
    left_plain: int = 0
    unsettled: str | None = None
    replicas: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of a shard from one peer to another.

    Attributes:
        is_sync: True if the source keeps its replica.
        method: Transfer method as the API names it.
        started_s: Start on the monotonic clock, in seconds.
    """

    shard: int
    source: int
    target: int
    is_sync: bool
    method: str
    started_s: float


class ServedCollection:
    """A collection of a running server.

    Attributes:
        record: Stored description.
        shard: The engine's handle; None while closed.
        summary: Statistics from the last closing of the shard; None if unknown.
        write_lock: Lock of the single writer.
        journal: Operations to replay on an optimized copy that is being built; None if no copy is being built.
        awake: True after the first update since the server's start. Until then nothing is optimized ("grey").
        failure: Error message of the last optimization; None if it succeeded.
        deleted: True after the deletion of the collection.
        transfers: Shard transfers in progress.
        snapshots: Number of snapshots in progress.
    """

    def __init__(self, folder: pathlib.Path, record: Record, *, awake: bool) -> None:
        self.folder = folder
        self.record = record
        self.shard: edge.EdgeShard | None = None
        self.summary: Summary | None = Summary() if record.generation is None else None
        self.write_lock = asyncio.Lock()
        self.operations = 0
        self.journal: list[edge.UpdateOperation] | None = None
        self.awake = awake
        self.failure: str | None = None
        self.deleted = False
        self.transfers: list[Transfer] = []
        self.snapshots = 0

    @property
    def name(self) -> str:
        """Name of the collection itself, not an alias."""
        return self.record.name

    @property
    def vectors(self) -> dict[str, Document]:
        """Parameters of the dense vectors by name; "" is the one without a name."""
        return dense_vectors(self.record.configuration["params"])

    @property
    def sparse_vectors(self) -> dict[str, Document]:
        """Parameters of the sparse vectors by name."""
        vectors: dict[str, Document] = self.record.configuration["params"].get("sparse_vectors", {})
        return vectors

    def shard_folder(self, generation: int) -> pathlib.Path:
        """Return the folder of one generation of the engine's files."""
        return self.folder / f"shard-{generation}"

    def save(self) -> None:
        """Store the record atomically."""
        save_record(self.folder, self.record)

    def next_operation(self) -> int:
        """Increment and return the number of updates."""
        self.operations += 1
        return self.operations


def new_record(name: str, configuration: Document, replicas: dict[str, dict[str, str]]) -> Record:
    """Build the record of a collection without points."""
    built = rebuild_key(configuration, indexed=False)
    return Record(name=name, configuration=configuration, built=built, replicas=replicas)


def save_record(folder: pathlib.Path, record: Record) -> None:
    """Store a record in a collection's folder."""
    write_json(folder / RECORD, fields_of(record))


def fields_of(record: Record) -> Document:
    """Return the fields of a record as a JSON object."""
    return {name: getattr(record, name) for name in Record.__slots__}


def load_record(folder: pathlib.Path) -> Record:
    """Read the record in a collection's folder."""
    return Record(**read_json(folder / RECORD))
