"""Where the data keys of privacy zones are kept: outside every collection and snapshot."""

from typing import Protocol

from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard


class KeyShards(Protocol):
    """The shards of every agent's keys."""

    async def read(self, ring: Ring, name: str) -> Shard:
        """A shard; one without keys where there is none.

        Raises:
            KeysDamaged: what it holds is no shard of keys: nobody is to write over that.
            TransientError: the store is away.
        """
        ...

    async def version(self, ring: Ring, name: str) -> str:
        """The version of a shard as it is now, without its content; empty where there is none.

        Raises:
            TransientError: the store is away.
        """
        ...

    async def write(self, shard: Shard) -> str:
        """Write a shard in the place of the version that it was read as; return its new version.

        Raises:
            Conflict: it was changed since; nothing was written.
            TransientError: the store is away or refuses; whether it was written is not known.
        """
        ...

    async def list_names(self, ring: Ring) -> list[str]:
        """The names of an agent's shards, in order.

        Raises:
            TransientError: the store is away.
        """
        ...

    async def delete(self, ring: Ring) -> None:
        """Delete all shards of an agent; those that are gone are no error.

        Raises:
            TransientError: the store is away; some may be left.
        """
        ...
