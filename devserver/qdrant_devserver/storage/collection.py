"""One collection: what is stored of it, and what is known of it while the server runs."""

import asyncio
import pathlib
from dataclasses import dataclass, field

import qdrant_edge as edge

from qdrant_devserver.fields import Document, Json
from qdrant_devserver.storage.configuration import dense_vectors
from qdrant_devserver.storage.engine_configuration import rebuilt_by
from qdrant_devserver.storage.files import read_json, write_json

RECORD = "collection.json"


@dataclass(slots=True)
class Summary:
    """What the engine last said of a collection's points.

    Attributes:
        points: how many there are.
        indexed: vectors that an index finds, sparse ones included: they are indexed as soon as they are stored.
        sparse: sparse vectors, those of points deleted since the last optimization included.
        segments: how many there are.
        index_points: payload index -> points that have the field.
    """

    points: int = 0
    indexed: int = 0
    sparse: int = 0
    segments: int = 0
    index_points: dict[str, int] = field(default_factory=dict)

    @property
    def indexed_dense(self) -> int:
        """Dense vectors that an index finds."""
        return max(0, self.indexed - self.sparse)


@dataclass(slots=True)
class Record:
    """What is stored of a collection besides its points.

    Attributes:
        name: the collection's.
        configuration: as `GET /collections/{name}` shows it.
        payload_schema: field -> `{"data_type", "params"?}`.
        generation: number of the engine folder in force; none until the first points request.
        built: what the segments were last built with, see `rebuilt_by`.
        indexed_base: indexed dense vectors after the last optimization.
        left_plain: points that the last optimization left unindexed on purpose.
        unsettled: vector that the engine may not have, or still have, unlike the configuration.
        replicas: shard -> peer -> state; empty of a server that is alone.
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
    """A shard on its way from peer to peer.

    Attributes:
        is_sync: the source keeps its replica.
        method: as the API names it.
        started_s: on the monotonic clock.
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
        record: what is stored.
        shard: the engine's handle while open.
        summary: what the engine said when it was last closed; none when that is not known.
        writing: held by the one writer.
        journal: operations applied while an optimized copy is being built; they are repeated on it.
        awake: whether an update came since the server started; until then nothing is optimized ("grey").
        failure: why the last optimization failed.
        deleted: true once the collection is gone.
        transfers: of shards, under way.
        snapshots: how many are being made.
    """

    def __init__(self, folder: pathlib.Path, record: Record, *, awake: bool) -> None:
        self.folder = folder
        self.record = record
        self.shard: edge.EdgeShard | None = None
        self.summary: Summary | None = Summary() if record.generation is None else None
        self.writing = asyncio.Lock()
        self.operations = 0
        self.journal: list[edge.UpdateOperation] | None = None
        self.awake = awake
        self.failure: str | None = None
        self.deleted = False
        self.transfers: list[Transfer] = []
        self.snapshots = 0

    @property
    def name(self) -> str:
        """The collection's own name, whatever alias led here."""
        return self.record.name

    @property
    def vectors(self) -> dict[str, Document]:
        """The dense vectors by name."""
        return dense_vectors(self.record.configuration["params"])

    @property
    def sparse_vectors(self) -> dict[str, Document]:
        """The sparse vectors by name."""
        vectors: dict[str, Document] = self.record.configuration["params"].get("sparse_vectors", {})
        return vectors

    def shard_folder(self, generation: int) -> pathlib.Path:
        """The folder of one generation of the engine's files."""
        return self.folder / f"shard-{generation}"

    def save(self) -> None:
        """Store the record atomically."""
        save_record(self.folder, self.record)

    def next_operation(self) -> int:
        """The number of the next update."""
        self.operations += 1
        return self.operations


def new_record(name: str, configuration: Document, replicas: dict[str, dict[str, str]]) -> Record:
    """The record of a collection without points."""
    built = rebuilt_by(configuration, indexed=False)
    return Record(name=name, configuration=configuration, built=built, replicas=replicas)


def save_record(folder: pathlib.Path, record: Record) -> None:
    """Store a record in a collection's folder."""
    write_json(folder / RECORD, fields_of(record))


def fields_of(record: Record) -> Document:
    """A record as a document."""
    return {name: getattr(record, name) for name in Record.__slots__}


def load_record(folder: pathlib.Path) -> Record:
    """The record that is stored in a collection's folder."""
    return Record(**read_json(folder / RECORD))
