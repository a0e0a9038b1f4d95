"""Keys of privacy zones without Kubernetes: in-memory shards, and a wrapping key of this process."""

import asyncio
import base64
import os
from collections import Counter
from dataclasses import dataclass, field, replace

from agentmemory_operator.errors import AgentMemoryError, Conflict, KeysDamaged
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard, parse_shard, render_shard
from agentmemory_operator.zones.wrapping_keys import WRAPPING_KEY_BYTES, WrappingKeys
from tests.support.fault_injection import Plantable, record_effect

RING = Ring("agents", "support-bot")


def new_wrapping_key() -> str:
    """Return a new wrapping key as the value of a Secret."""
    return base64.b64encode(os.urandom(WRAPPING_KEY_BYTES)).decode()


@dataclass(slots=True)
class FakeKeyShards(Plantable):
    """Implements ports.KeyShards in memory. It stores text, as in a Secret.

    Attributes:
        texts: Stored texts by ring and name.
        calls: Number of calls by method.
        error: Raised by every call; None for none.
        lost: Raised by the next write after it took effect; None for none.
    """

    PLANTABLE = ("error", "lost")

    texts: dict[tuple[Ring, str], str] = field(default_factory=dict)
    versions: dict[tuple[Ring, str], str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    error: AgentMemoryError | None = None
    lost: AgentMemoryError | None = None

    async def read(self, ring: Ring, name: str) -> Shard:
        await self._called("read")
        if (ring, name) not in self.texts:
            return Shard(ring=ring, name=name)
        try:
            return parse_shard(self.texts[ring, name], ring=ring, name=name, version=self.versions[ring, name])
        except ValueError as exc:
            raise KeysDamaged(f"shard {name} holds no keys") from exc

    async def version(self, ring: Ring, name: str) -> str:
        await self._called("version")
        return self.versions.get((ring, name), "")

    async def write(self, shard: Shard) -> str:
        await self._called("write")
        place = shard.ring, shard.name
        if shard.version != self.versions.get(place, ""):
            raise Conflict(f"shard {shard.name} of {shard.ring} was changed concurrently")
        self.texts[place], self.versions[place] = render_shard(shard), str(self.calls["write"])
        if self.lost is not None:
            record_effect(self, "lost")
            lost, self.lost = self.lost, None
            raise lost
        return self.versions[place]

    async def list_names(self, ring: Ring) -> list[str]:
        await self._called("list_names")
        return sorted(name for whose, name in self.texts if whose == ring)

    async def delete(self, ring: Ring) -> None:
        await self._called("delete")
        for place in [place for place in self.texts if place[0] == ring]:
            del self.texts[place], self.versions[place]

    async def _called(self, method: str) -> None:
        self.calls[method] += 1
        await asyncio.sleep(0)
        if self.error is not None:
            record_effect(self, "error")
            raise self.error


@dataclass(slots=True)
class FakeWrapping(Plantable):
    """The wrapping key of an agent, as `AgentKeys.wrapping` reads it.

    Attributes:
        error: Raised by every read; None for none.
        reads: Number of reads.
    """

    PLANTABLE = ("error",)

    keys: WrappingKeys = field(default_factory=lambda: WrappingKeys(os.urandom(WRAPPING_KEY_BYTES)))
    reads: int = 0
    error: AgentMemoryError | None = None

    async def __call__(self) -> WrappingKeys:
        self.reads += 1
        await asyncio.sleep(0)
        if self.error is not None:
            record_effect(self, "error")
            raise self.error
        return self.keys

    def rotate(self) -> None:
        """Set a new current key; the old one becomes the previous key."""
        self.keys = WrappingKeys(os.urandom(WRAPPING_KEY_BYTES), self.keys.current)

    def forget_previous(self) -> None:
        """Remove the previous key."""
        self.keys = replace(self.keys, previous=None)


def agent_keys(ring: Ring = RING, wrapping: FakeWrapping | None = None) -> AgentKeys:
    """Build the keys of an agent, by default with a new wrapping key."""
    return AgentKeys(ring, wrapping or FakeWrapping())


def keyring(clock: Clock, shards: FakeKeyShards | None = None) -> Keyring:
    """Build the keyring of a replica."""
    return Keyring(shards or FakeKeyShards(), clock)
