"""Rotation of data keys: by the next writer, for a whole shard at once, with the same hash keys."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from agentmemory_operator.errors import TransientError
from agentmemory_operator.zones.keyring import AgentKeys, DataKey, Keyring
from agentmemory_operator.zones.rules import shards
from agentmemory_operator.zones.rules.entries import MAX_SHARD_KEYS
from agentmemory_operator.zones.wrapping_keys import WrappingKeys
from tests.support.engine.fakes import FakeClock
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

ZONE = "PERSONAL"


@dataclass(slots=True)
class Rotating:
    """Two replicas over one store; the second may not have the rotation request yet."""

    shards: FakeKeyShards = field(default_factory=FakeKeyShards)
    clock: FakeClock = field(default_factory=FakeClock)
    wrapping: FakeWrapping = field(default_factory=FakeWrapping)
    one: Keyring = field(init=False)
    other: Keyring = field(init=False)
    before: AgentKeys = field(init=False)
    keys: AgentKeys = field(init=False)

    def __post_init__(self) -> None:
        self.one, self.other = Keyring(self.shards, self.clock), Keyring(self.shards, self.clock)
        self.before = self.keys = AgentKeys(RING, self.wrapping)

    def rotate(self, *, in_ms: int = 0) -> None:
        """Request the rotation of all existing keys."""
        self.clock.move(ms=1000)
        self.keys = replace(self.before, rotate_before_ms=self.clock.now_ms() + in_ms)

    async def create_keys(self, owners: Iterable[str]) -> dict[str, DataKey]:
        return {owner: await self.one.get_or_create_key(self.keys, ZONE, owner) for owner in owners}


async def test_writer_rotates_key_and_keeps_hashes() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate()

    new = await it.one.get_or_create_key(it.keys, ZONE, "ada")

    assert new.id != old.id
    assert new.cipher_key != old.cipher_key
    assert (new.mac, new.id_secret, new.zone) == (old.mac, old.id_secret, old.zone)
    assert new.created_ms >= it.keys.rotate_before_ms > old.created_ms
    assert await it.other.read_keys(it.before, [old.id, new.id]) == {old.id: old, new.id: new}
    assert await it.one.get_or_create_key(it.keys, ZONE, "ada") == new
    assert await it.one.find_active_key(it.keys, old.id) == new == await it.one.find_active_key(it.keys, new.id)


async def test_uninformed_replica_keeps_using_old_key() -> None:
    it = Rotating()
    old = await it.other.get_or_create_key(it.before, ZONE, "ada")
    it.rotate()
    new = await it.one.get_or_create_key(it.keys, ZONE, "ada")

    assert await it.other.get_or_create_key(it.before, ZONE, "ada") == old
    assert await it.other.get_or_create_key(it.keys, ZONE, "ada") == new
    assert await it.other.get_or_create_key(it.before, ZONE, "ada") == new


async def test_concurrent_writers_rotate_once() -> None:
    it = Rotating()
    await it.one.get_or_create_key(it.keys, ZONE, "ada")
    await it.other.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate()

    found = await asyncio.gather(
        *(by.get_or_create_key(it.keys, ZONE, "ada") for by in (it.one, it.other) for _ in range(20))
    )

    assert len(set(found)) == 1
    assert it.shards.texts[RING, "0"].count(ZONE) == 2


async def test_future_rotation_time_is_awaited() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate(in_ms=5000)

    assert await it.one.get_or_create_key(it.keys, ZONE, "ada") == old
    it.clock.move(ms=5000)
    new = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.clock.move(ms=5000)

    assert new.id != old.id
    assert await it.one.get_or_create_key(it.keys, ZONE, "ada") == new


async def test_one_write_rotates_a_whole_shard() -> None:
    """Closed shards are rotated too. The rotation adds no owner to a shard."""

    it = Rotating()
    owners = [f"user-{number}" for number in range(MAX_SHARD_KEYS + 4)]
    old = await it.create_keys(owners)
    it.rotate()
    writes = it.shards.calls["write"]

    new = await it.create_keys(owners)

    names = {key.id: key.id[: int(key.id[0]) + 1] for key in (*old.values(), *new.values())}
    assert [names[new[owner].id] for owner in owners] == [names[old[owner].id] for owner in owners]
    assert it.shards.calls["write"] - writes == len(set(names.values()))
    assert not {key.id for key in old.values()} & {key.id for key in new.values()}
    assert (await it.one.get_or_create_key(it.keys, ZONE, "late")).id[0] == "1"


async def test_destroy_removes_old_and_new_keys() -> None:
    it = Rotating()
    old = await it.create_keys(["ada", "bob"])
    it.rotate()
    await it.one.get_or_create_key(it.keys, ZONE, "bob")

    gone = await it.other.destroy(it.before, owner="ada", zones=[ZONE])

    assert len(gone) == 2
    assert old["ada"].id in gone
    assert await it.other.find_active_key(it.keys, old["ada"].id) is None
    assert await it.one.find_active_key(it.keys, "no id") is None
    assert await it.other.read_keys(it.keys, gone) == {}
    assert (await it.other.get_or_create_key(it.keys, ZONE, "ada")).mac != old["ada"].mac


async def test_key_destroyed_during_rotation_is_not_restored() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate()
    await it.other.destroy(it.before, owner="ada", zones=[ZONE])

    assert await it.one.find_active_key(it.keys, old.id) is None
    assert ZONE not in it.shards.texts[RING, "0"]
    assert (await it.one.get_or_create_key(it.keys, ZONE, "ada")).mac != old.mac


async def test_unknown_wrapping_key_does_not_block_others() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.wrapping.keys = WrappingKeys(bytes(32))
    it.clock.move(ms=60_000)
    await it.one.get_or_create_key(it.keys, ZONE, "bob")
    it.rotate()

    new = await it.one.get_or_create_key(it.keys, ZONE, "bob")

    shard = await it.shards.read(RING, "0")
    assert shard.entries[old.id].is_active
    assert len(shard.entries) == 3
    assert new.id in shard.entries


async def test_full_shard_keeps_the_old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate()
    monkeypatch.setattr(shards, "MAX_SHARD_BYTES", shards.MAX_ENTRY_BYTES)

    assert await it.one.get_or_create_key(it.keys, ZONE, "ada") == old
    assert await it.one.find_active_key(it.keys, old.id) == old
    assert it.shards.calls["write"] == 1


async def test_lost_rotation_response_is_recovered() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.rotate()
    it.shards.lost = TransientError("no answer")
    with pytest.raises(TransientError):
        await it.one.get_or_create_key(it.keys, ZONE, "ada")

    new = await it.one.get_or_create_key(it.keys, ZONE, "ada")

    assert new.id != old.id
    assert it.shards.texts[RING, "0"].count(ZONE) == 2


async def test_wrapping_key_rotates_independently() -> None:
    it = Rotating()
    old = await it.one.get_or_create_key(it.keys, ZONE, "ada")
    it.wrapping.rotate()
    it.rotate()
    it.clock.move(ms=60_000)

    new = await it.one.get_or_create_key(it.keys, ZONE, "ada")

    shard = await it.shards.read(RING, "0")
    assert {shard.entries[key.id].wrapping_fingerprint for key in (old, new)} == set(it.wrapping.keys.fingerprints)
    assert await it.other.read_keys(it.keys, [old.id, new.id]) == {old.id: old, new.id: new}
