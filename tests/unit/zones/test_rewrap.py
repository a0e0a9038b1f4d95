"""Rewrapping of all data keys with a new wrapping key."""

import base64
import os
from dataclasses import replace

import pytest

from agentmemory_operator.errors import TransientError
from agentmemory_operator.zones import rewrap as module
from agentmemory_operator.zones.keyring import Keyring
from agentmemory_operator.zones.rewrap import Census, rewrap
from agentmemory_operator.zones.rules.entries import Ring, shard_at
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping_keys import WrappingKeys
from tests.support.engine.fakes import FakeClock
from tests.support.zones import RING, FakeKeyShards, FakeWrapping, agent_keys, keyring

USERS = [f"user-{number}" for number in range(80)]


class Bench:
    """An agent with the keys of its users in several shards, and replicas that use them."""

    def __init__(self) -> None:
        self.shards, self.wrapping, self.clock = FakeKeyShards(), FakeWrapping(), FakeClock()
        self.keys = agent_keys(RING, self.wrapping)
        self.ids: dict[str, str] = {}

    def replica(self) -> Keyring:
        return keyring(self.clock, self.shards)

    async def fill(self, users: list[str] = USERS) -> None:
        replica = self.replica()
        for user in users:
            self.ids[user] = (await replica.get_or_create_key(self.keys, "PERSONAL", user)).id

    async def material(self) -> dict[str, bytes]:
        """Return the material of every key, as a new replica unwraps it."""
        found = await self.replica().read_keys(self.keys, self.ids.values())
        return {key_id: key.cipher_key + key.mac for key_id, key in found.items()}

    async def fingerprints(self) -> set[str]:
        names = await self.shards.list_names(RING)
        return {
            entry.wrapping_fingerprint
            for name in names
            for entry in (await self.shards.read(RING, name)).entries.values()
        }

    async def rewrap(self) -> Census:
        return await rewrap(self.shards, RING, self.wrapping.keys)


async def test_rewrap_covers_every_key_and_keeps_material() -> None:
    bench = Bench()
    await bench.fill()
    before = await bench.material()
    bench.wrapping.rotate()

    census = await bench.rewrap()

    assert (census.keys, census.rewrapped, census.unreadable) == (len(USERS), len(USERS), 0)
    bench.wrapping.forget_previous()
    assert await bench.fingerprints() == {bench.wrapping.keys.fingerprint}
    assert await bench.material() == before


async def test_rewrap_is_idempotent() -> None:
    bench = Bench()
    await bench.fill()
    bench.wrapping.rotate()
    await bench.rewrap()
    writes = bench.shards.calls["write"]

    assert (await bench.rewrap()).rewrapped == 0
    assert bench.shards.calls["write"] == writes


async def test_rewrap_ignores_other_agents() -> None:
    bench, other = Bench(), Ring("elsewhere", RING.agent)
    await bench.fill(USERS[:1])
    await bench.replica().get_or_create_key(agent_keys(other), "PERSONAL", "ada")
    before = bench.shards.texts[other, "0"]
    bench.wrapping.rotate()

    await bench.rewrap()

    assert bench.shards.texts[other, "0"] == before


@pytest.mark.parametrize("survived", range(6))
async def test_next_run_completes_after_any_kill(survived: int) -> None:
    bench = Bench()
    await bench.fill()
    before = await bench.material()
    bench.wrapping.rotate()
    writes = 0

    class Killed(Exception):
        pass

    async def write(shard: Shard) -> str:
        nonlocal writes
        writes += 1
        if writes > survived:
            raise Killed
        return await FakeKeyShards.write(bench.shards, shard)

    class Dying(FakeKeyShards):
        async def write(self, shard: Shard) -> str:
            return await write(shard)

    dying = Dying(bench.shards.texts, bench.shards.versions, bench.shards.calls)
    with pytest.raises(Killed):
        await rewrap(dying, RING, bench.wrapping.keys)
    assert await bench.material() == before

    census = await bench.rewrap()

    assert (census.keys, census.unreadable) == (len(USERS), 0)
    assert await bench.fingerprints() == {bench.wrapping.keys.fingerprint}
    assert await bench.material() == before


class ConcurrentKeyShards(FakeKeyShards):
    """Runs a concurrent change before the next write."""

    ahead: object = None

    async def write(self, shard: Shard) -> str:
        ahead, self.ahead = self.ahead, None
        if callable(ahead):
            await ahead()
        return await FakeKeyShards.write(self, shard)


async def test_concurrent_changes_are_kept() -> None:
    """A destroyed key is not restored; a created key is kept."""

    bench = Bench()
    bench.shards = ConcurrentKeyShards()
    await bench.fill(USERS[:5])
    bench.wrapping.rotate()

    async def ahead() -> None:
        replica = bench.replica()
        await replica.destroy(bench.keys, owner=USERS[0], zones=["PERSONAL"])
        bench.ids["late"] = (await replica.get_or_create_key(bench.keys, "PERSONAL", "late")).id

    bench.shards.ahead = ahead
    await bench.rewrap()

    gone = bench.ids.pop(USERS[0])
    assert set(await bench.material()) == set(bench.ids.values())
    assert await bench.replica().read_keys(bench.keys, [gone]) == {}
    assert await bench.fingerprints() == {bench.wrapping.keys.fingerprint}


async def test_lost_write_response_is_recovered() -> None:
    bench = Bench()
    await bench.fill(USERS[:3])
    before = await bench.material()
    bench.wrapping.rotate()
    bench.shards.lost = TransientError("no answer")

    with pytest.raises(TransientError, match="no answer"):
        await bench.rewrap()

    assert (await bench.rewrap()).unreadable == 0
    assert await bench.material() == before


async def test_endless_conflicts_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0)
    bench = Bench()
    bench.shards = ConcurrentKeyShards()
    await bench.fill(USERS[:1])
    bench.wrapping.rotate()

    async def ahead() -> None:
        shard = await bench.shards.read(RING, "0")
        await FakeKeyShards.write(bench.shards, shard)
        bench.shards.ahead = ahead

    bench.shards.ahead = ahead
    with pytest.raises(TransientError, match="key shard 0"):
        await bench.rewrap()


async def test_unknown_wrapping_key_is_reported() -> None:
    bench = Bench()
    await bench.fill(USERS[:3])
    lost = bench.wrapping.keys
    bench.wrapping.keys = WrappingKeys(os.urandom(32))
    bench.ids["late"] = (await bench.replica().get_or_create_key(bench.keys, "PERSONAL", "late")).id

    census = await bench.rewrap()

    assert (census.keys, census.unreadable, census.rewrapped) == (4, 3, 0)
    assert lost.fingerprint in census.error_message
    bench.wrapping.keys = WrappingKeys(bench.wrapping.keys.current, lost.current)
    assert (await bench.rewrap()).rewrapped == 3


async def test_corrupt_key_does_not_block_the_others() -> None:
    bench = Bench()
    await bench.fill(USERS[:3])
    shard = await bench.shards.read(RING, shard_at("0", 0))
    broken = next(iter(shard.entries))
    blob = bytearray(base64.b64decode(shard.entries[broken].wrapped))
    blob[-1] ^= 1
    entry = replace(shard.entries[broken], wrapped=base64.b64encode(blob).decode())
    await bench.shards.write(replace(shard, entries={**shard.entries, broken: entry}))
    bench.wrapping.rotate()

    census = await bench.rewrap()

    assert (census.keys, census.rewrapped, census.unreadable) == (3, 2, 1)
    assert broken in census.error_message


async def test_corrupt_shard_does_not_block_the_others() -> None:
    bench = Bench()
    await bench.fill()
    names = await bench.shards.list_names(RING)
    bench.shards.texts[RING, names[1]] = "{}"
    bench.wrapping.rotate()

    census = await bench.rewrap()

    assert (census.shards, census.damaged, census.error_message) == (len(names), 1, f"shard {names[1]} holds no keys")
    assert census.rewrapped == census.keys > 0
    assert bench.shards.texts[RING, names[1]] == "{}"


async def test_missing_shards_are_named_by_their_parents() -> None:
    bench = Bench()
    await bench.fill()
    _, gone, *_ = await bench.shards.list_names(RING)
    assert (await bench.rewrap()).missing == frozenset()
    del bench.shards.texts[RING, gone], bench.shards.versions[RING, gone]

    assert (await bench.rewrap()).missing == {gone}
