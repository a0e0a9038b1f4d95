"""Which shard snapshots belong together: on record in the metadata of a collection that holds nothing else.

Qdrant knows single files only, each on its node. The record is written before the first file is made, and says at the
end that all are there: what a kill left is found by it, and nothing of it is taken for a snapshot.

A node may know an older record than another. So every node is asked for its own, most have to answer, and of each set
the record counts that is furthest on; a write has ended once most nodes know it (docs/adr/0021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.control import QdrantControl
from agentmemory_operator.adapters.qdrant.nodes import QdrantNode, await_known, metadata_of_most
from agentmemory_operator.adapters.qdrant.shard_archives import archive_size
from agentmemory_operator.collections.rules.collection import METADATA_KEY
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import ShardFile
from agentmemory_operator.spec.naming import SHARD_SETS

_METADATA: Json = {METADATA_KEY: {"shardSets": True}}
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """One snapshot of every shard of a collection.

    Attributes:
        configuration: what makes the same collection, as PUT takes it.
        indexes: of its payload, field -> schema as PUT takes it.
        sources: shard -> peer that makes its file, as text, as JSON has it.
        known: shard -> files that were there before.
        files: those that are made.
        sha256: of the archive; None until all are made.
    """

    physical: str
    name: str
    configuration: Json
    indexes: Json
    sources: Mapping[str, int | None]
    known: Mapping[str, list[str]] = field(default_factory=dict)
    files: tuple[ShardFile, ...] = ()
    sha256: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every shard's file was made."""
        return self.sha256 is not None

    @property
    def manifest(self) -> Json:
        """What the archive begins with."""
        shards = [{"shard": file.shard, "size": file.size, "sha256": file.sha256} for file in self.files]
        return {"format": FORMAT, "configuration": self.configuration, "indexes": self.indexes, "shards": shards}

    @property
    def size(self) -> int:
        """Of the archive, in bytes."""
        return archive_size(self.manifest, (file.size for file in self.files))

    @property
    def created_ms(self) -> int:
        """When its last file was made, by its server's clock."""
        return max((file.created_ms for file in self.files), default=0)

    def finished(self, sha256: str) -> "ShardSet":
        """The set with all of its files made."""
        return replace(self, sha256=sha256, known={})

    def with_file(self, file: ShardFile) -> "ShardSet":
        """The set with one more file."""
        return replace(self, files=(*self.files, file))


class ShardSets:
    """The record of one cluster.

    Args:
        qdrant: takes what is written.
        nodes: are asked, each for what it knows.
    """

    def __init__(self, qdrant: QdrantControl, nodes: Sequence[QdrantNode]) -> None:
        self._qdrant, self._nodes = qdrant, nodes

    async def of(self, physical: str) -> list[ShardSet]:
        """The sets of a collection, unfinished ones too, oldest first.

        Raises:
            StoreUnavailable: most nodes do not answer: what others lack, they may have.
        """
        found: dict[str, ShardSet] = {}
        for metadata in await metadata_of_most(self._nodes, SHARD_SETS):
            with understood():
                told = [_set_of(each) for key, each in (metadata or {}).items() if key.startswith(f"{physical}/")]
            for record in told:
                found[record.name] = max(found.get(record.name, record), record, key=_progress)
        return sorted(found.values(), key=lambda each: (each.created_ms, each.name))

    async def find(self, physical: str, name: str) -> ShardSet | None:
        """A set whose files were all made."""
        return next((each for each in await self.of(physical) if each.name == name and each.is_whole), None)

    async def write(self, record: ShardSet) -> None:
        """Put a set on record, as it is now."""
        # As it is read again: without tuples.
        document = orjson.loads(orjson.dumps(asdict(record)))
        await self._change({_key(record.physical, record.name): document})

    async def drop(self, physical: str, name: str) -> None:
        """Take a set off the record."""
        await self._change({_key(physical, name): None})

    async def _change(self, changes: Json) -> None:
        try:
            await self._qdrant.write_metadata(SHARD_SETS, changes)
        except NotFound:
            # A node without a replica tells what another knows.
            await self._qdrant.create_empty(SHARD_SETS, _METADATA, replicas=len(self._nodes))
            await self._qdrant.write_metadata(SHARD_SETS, changes)
        await await_known(self._nodes, SHARD_SETS, changes)


def _key(physical: str, name: str) -> str:
    return f"{physical}/{name}"


def _progress(record: ShardSet) -> tuple[bool, int]:
    return record.is_whole, len(record.files)


def _set_of(document: Mapping[str, Any]) -> ShardSet:
    return ShardSet(**{**document, "files": tuple(ShardFile(**file) for file in document["files"])})
