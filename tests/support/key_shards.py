"""Contract tests for all stores of key shards: the fake, the files of development, the Secrets of a cluster."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from agentmemory_operator.errors import Conflict
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.rules.entries import MAX_SHARD_KEYS, Ring, new_key_id, scope_hash
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping_keys import WrappingKeys
from tests.support.engine.fakes import FakeClock
from tests.support.zones import FakeWrapping

Behaviour = Callable[[KeyShards, Ring], Awaitable[None]]


def new_ring() -> Ring:
    """Return a ring that no other test uses."""
    return Ring("agents", f"bot-{uuid4().hex[:12]}")


def new_shard(ring: Ring, name: str = "0", *, keys: int = 2) -> Shard:
    """Build a new shard with keys."""
    wrapping, shard = WrappingKeys(bytes(32)), Shard(ring=ring, name=name)
    for number in range(keys):
        key_id, scope = new_key_id(name), scope_hash("PERSONAL", f"user-{number}")
        shard = shard.with_key(key_id, wrapping.wrap(key_id, bytes(64), zone="PERSONAL", scope=scope, at=1))
    return shard


async def what_is_written_is_read(shards: KeyShards, ring: Ring) -> None:
    assert await shards.read(ring, "0") == Shard(ring=ring, name="0")
    assert await shards.version(ring, "0") == ""

    version = await shards.write(new_shard(ring, keys=MAX_SHARD_KEYS))

    read = await shards.read(ring, "0")
    assert (len(read.entries), read.is_closed, read.version) == (MAX_SHARD_KEYS, True, version)
    assert await shards.version(ring, "0") == version != ""


async def each_write_is_another_version(shards: KeyShards, ring: Ring) -> None:
    first = await shards.write(new_shard(ring))
    read = await shards.read(ring, "0")
    kept = next(iter(read.entries))

    second = await shards.write(replace(read, entries={kept: read.entries[kept]}))

    assert first != second == await shards.version(ring, "0")
    assert list((await shards.read(ring, "0")).entries) == [kept]


async def of_two_writers_one_is_told(shards: KeyShards, ring: Ring) -> None:
    wanted = new_shard(ring)
    await shards.write(wanted)
    read = await shards.read(ring, "0")

    for stale in (new_shard(ring), replace(read, version=f"1{read.version}")):
        with pytest.raises(Conflict):
            await shards.write(stale)

    assert await shards.read(ring, "0") == read


async def what_was_deleted_is_not_written_over(shards: KeyShards, ring: Ring) -> None:
    await shards.write(new_shard(ring))
    read = await shards.read(ring, "0")
    await shards.delete(ring)

    with pytest.raises(Conflict):
        await shards.write(replace(read, entries={}))
    assert await shards.version(ring, "0") == ""


async def shards_are_listed_and_deleted(shards: KeyShards, ring: Ring) -> None:
    elsewhere = replace(ring, namespace="other")
    longer = replace(ring, agent=f"{ring.agent}-1a")
    for whose in (ring, elsewhere, longer):
        for name in ("0", "1a", "2a3", "3a3f"):
            await shards.write(new_shard(whose, name))

    assert await shards.list_names(ring) == ["0", "1a", "2a3", "3a3f"]
    await shards.delete(ring)
    await shards.delete(ring)

    assert await shards.list_names(ring) == []
    assert await shards.list_names(elsewhere) == await shards.list_names(longer) == ["0", "1a", "2a3", "3a3f"]
    assert (await shards.read(longer, "0")).entries


async def replicas_make_one_key_each_and_find_them_all(shards: KeyShards, ring: Ring) -> None:
    keys, clock, owners = AgentKeys(ring, FakeWrapping()), FakeClock(), [f"user-{number}" for number in range(8)]
    replicas = [Keyring(shards, clock) for _ in range(3)]

    found = await asyncio.gather(
        *(replica.get_or_create_key(keys, "PERSONAL", owner) for owner in owners for replica in replicas)
    )

    made = {key.id: key for key in found}
    assert len(made) == len(set(found)) == len(owners)
    assert await Keyring(shards, clock).read_keys(keys, list(made)) == made
    (gone,) = await replicas[0].destroy(keys, owner="user-0", zones=["PERSONAL", "SENSITIVE"])
    assert (await Keyring(shards, clock).read_keys(keys, list(made))).keys() == made.keys() - {gone}


BEHAVIOURS: Sequence[Behaviour] = (
    what_is_written_is_read,
    each_write_is_another_version,
    of_two_writers_one_is_told,
    what_was_deleted_is_not_written_over,
    shards_are_listed_and_deleted,
    replicas_make_one_key_each_and_find_them_all,
)
