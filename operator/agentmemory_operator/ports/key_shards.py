"""Port for the data keys of privacy zones, which are stored outside all collections and snapshots."""

from typing import Protocol

from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard


class KeyShards(Protocol):
    """Stores the keys of all agents. A ring denotes the keys of one agent. A shard contains a part of a ring."""

    async def read(self, ring: Ring, name: str) -> Shard:
        """Return a shard, or an empty shard if none is stored.

        Raises:
            KeysDamaged: If the stored content is no shard of keys. It must not be overwritten.
            TransientError: If the store is unavailable.
        """
        ...

    async def version(self, ring: Ring, name: str) -> str:
        """Return the current version of a shard without its content; empty if none is stored.

        Raises:
            TransientError: If the store is unavailable.
        """
        ...

    async def write(self, shard: Shard) -> str:
        """Write a shard by compare-and-set on its version; return the new version.

        Raises:
            Conflict: If the stored version differs, or the shard was deleted; nothing was written.
            TransientError: If the store is unavailable or rejects the write. The shard may have been written.
        """
        ...

    async def list_names(self, ring: Ring) -> list[str]:
        """Return the names of an agent's shards, sorted.

        Raises:
            TransientError: If the store is unavailable.
        """
        ...

    async def delete(self, ring: Ring) -> None:
        """Delete all shards of an agent; absent shards are no error.

        Raises:
            TransientError: If the store is unavailable. Some shards may remain.
        """
        ...
