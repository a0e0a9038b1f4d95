"""Keyring of one replica, and of two that share their shards."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

import pytest

from agentmemory_operator.adapters.kubernetes.transport import KubernetesConflict
from agentmemory_operator.errors import KeysUnavailable, SpecInvalid, TransientError
from agentmemory_operator.zones import keyring as module
from agentmemory_operator.zones.keyring import FRESH_MS, MAX_SHARDS_PER_READ, AgentKeys, DataKey, Keyring
from agentmemory_operator.zones.rules.entries import (
    MAX_SHARD_KEYS,
    Ring,
    new_key_id,
    scope_hash,
    shard_at,
    shard_of_key,
)
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.shard_cache import MAX_WRITE_ATTEMPTS
from agentmemory_operator.zones.wrapping_key_cache import MIN_REREAD_MS
from tests.support.engine.fakes import FakeClock
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

PERSONAL, SENSITIVE = "PERSONAL", "SENSITIVE"


@dataclass(slots=True)
class Replicas:
    """Two replicas over one store."""

    shards: FakeKeyShards = field(default_factory=FakeKeyShards)
    clock: FakeClock = field(default_factory=FakeClock)
    wrapping: FakeWrapping = field(default_factory=FakeWrapping)
    one: Keyring = field(init=False)
    other: Keyring = field(init=False)
    keys: AgentKeys = field(init=False)

    def __post_init__(self) -> None:
        self.one, self.other = Keyring(self.shards, self.clock), Keyring(self.shards, self.clock)
        self.keys = AgentKeys(RING, self.wrapping)

    def passes(self, ms: int) -> None:
        self.clock.move(ms=ms)

    async def get_key(self, owner: str = "ada", zone: str = PERSONAL, by: Keyring | None = None) -> DataKey:
        return await (by or self.one).get_or_create_key(self.keys, zone, owner)

    async def read_keys(self, *ids: str, by: Keyring | None = None) -> dict[str, DataKey]:
        return await (by or self.one).read_keys(self.keys, ids)


async def has_sealed() -> bool:
    return True


async def expect_unavailable(call: Awaitable[object]) -> KeysUnavailable:
    with pytest.raises(KeysUnavailable) as raised:
        await call
    return raised.value


async def test_key_is_stored_before_first_use() -> None:
    replicas = Replicas()

    key = await replicas.get_key()

    assert key.id in replicas.shards.texts[RING, "0"]
    assert (len(key.cipher_key), len(key.mac), len(key.id_secret), key.zone) == (32, 32, 32, PERSONAL)
    assert await replicas.read_keys(key.id, by=replicas.other) == {key.id: key}
    assert await replicas.get_key(by=replicas.other) == key
    assert replicas.shards.calls["write"] == 1


async def test_keys_differ_by_owner_zone_and_agent() -> None:
    replicas = Replicas()
    elsewhere = AgentKeys(Ring("other", "support-bot"), FakeWrapping())

    keys = [await replicas.get_key("ada"), await replicas.get_key("bob"), await replicas.get_key("ada", SENSITIVE)]
    keys.append(await replicas.one.get_or_create_key(elsewhere, PERSONAL, "ada"))

    assert len({key.cipher_key for key in keys} | {key.mac for key in keys}) == 8
    for key in keys[:3]:
        assert await replicas.one.read_keys(elsewhere, [key.id]) == {}


async def test_secrets_are_not_in_repr_or_store() -> None:
    replicas = Replicas()

    key = await replicas.get_key()

    assert "\\x" not in repr(key)
    assert "ada" not in replicas.shards.texts[RING, "0"]
    assert replicas.wrapping.keys.current.hex() not in replicas.shards.texts[RING, "0"]


async def test_concurrent_writers_create_one_key() -> None:
    replicas = Replicas()

    found = await asyncio.gather(*(replicas.get_key(by=by) for by in (replicas.one, replicas.other) for _ in range(20)))

    assert len(set(found)) == 1
    assert replicas.shards.texts[RING, "0"].count(PERSONAL) == 1


async def test_cached_key_is_revalidated_by_version() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    before = replicas.shards.calls.total(), replicas.wrapping.reads

    replicas.passes(FRESH_MS - 1)
    assert await replicas.get_key() == key
    assert (replicas.shards.calls.total(), replicas.wrapping.reads) == before

    replicas.passes(1)
    calls = replicas.shards.calls.copy()
    assert await replicas.get_key() == key
    assert replicas.shards.calls - calls == {"version": 1}


async def test_clock_set_back_expires_the_cache() -> None:
    replicas = Replicas()
    await replicas.get_key()

    replicas.passes(-3_600_000)
    replicas.wrapping.error = TransientError("away")

    await expect_unavailable(replicas.get_key())


async def test_key_of_another_replica_is_found_at_once() -> None:
    replicas = Replicas()
    await replicas.get_key("bob", by=replicas.other)

    key = await replicas.get_key("ada", by=replicas.one)

    assert list(await replicas.read_keys(key.id, by=replicas.other)) == [key.id]


async def test_destroyed_key_is_absent_within_a_minute() -> None:
    """On the replica that destroyed it, the key is absent at once."""

    replicas = Replicas()
    key, kept = await replicas.get_key(), await replicas.get_key("bob")
    await replicas.read_keys(key.id, kept.id, by=replicas.other)

    assert await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL, SENSITIVE]) == [key.id]

    assert key.id not in replicas.shards.texts[RING, "0"]
    assert list(await replicas.read_keys(key.id, kept.id)) == [kept.id]
    replicas.passes(FRESH_MS)
    assert list(await replicas.read_keys(key.id, kept.id, by=replicas.other)) == [kept.id]


async def test_destroy_is_idempotent() -> None:
    replicas = Replicas()
    await replicas.get_key()
    await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL])
    writes = replicas.shards.calls["write"]

    assert await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL]) == []
    assert replicas.shards.calls["write"] == writes


async def test_destroy_needs_no_wrapping_key() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    reads = replicas.wrapping.reads
    replicas.wrapping = FakeWrapping()

    assert await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL]) == [key.id]
    assert replicas.wrapping.reads + reads == reads


async def test_key_after_destruction_is_new() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL])

    another = await replicas.get_key()

    assert {another.id, another.cipher_key, another.mac}.isdisjoint({key.id, key.cipher_key, key.mac})


async def test_write_under_destroyed_key_is_not_confirmed() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    await replicas.one.check_stored(replicas.keys, [key.id])

    await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL])

    error = await expect_unavailable(replicas.one.check_stored(replicas.keys, [key.id]))
    assert "destroyed" in str(error)
    assert (await replicas.get_key()).id != key.id


async def test_confirmations_share_a_version_check() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    calls = replicas.shards.calls.copy()

    await asyncio.gather(*(replicas.one.check_stored(replicas.keys, [key.id]) for _ in range(50)))

    looks = replicas.shards.calls - calls
    assert looks.keys() == {"version"}
    assert looks.total() <= 2


async def test_closed_shards_continue_at_the_next_level() -> None:
    replicas = Replicas()
    owners = [f"user-{number}" for number in range(3 * MAX_SHARD_KEYS)]

    made = {owner: await replicas.get_key(owner) for owner in owners}

    names = await replicas.shards.list_names(RING)
    assert names[0] == "0"
    assert {name[0] for name in names} == {"0", "1"}
    first = await replicas.shards.read(RING, "0")
    assert (first.is_closed, len(first.entries)) == (True, MAX_SHARD_KEYS)
    fresh = Keyring(replicas.shards, replicas.clock)
    found = await replicas.read_keys(*(key.id for key in made.values()), by=fresh)
    assert found == {key.id: key for key in made.values()}
    assert {owner: await replicas.get_key(owner, by=fresh) for owner in owners} == made


async def test_destroy_removes_keys_of_every_level() -> None:
    """A closed shard stays closed after it has lost a key."""

    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.get_key(f"user-{number}")
    await replicas.one.destroy(replicas.keys, owner="user-0", zones=[PERSONAL])

    key = await replicas.get_key("user-0")

    assert key.id.startswith("1")
    assert await replicas.one.destroy(replicas.keys, owner="user-0", zones=[PERSONAL]) == [key.id]
    assert await replicas.read_keys(key.id) == {}


@pytest.mark.parametrize("owner", ["ada", None])
async def test_destroy_reaches_below_a_recreated_shard(owner: str | None) -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.get_key(f"user-{number}")
    key = await replicas.get_key("ada")
    assert key.id.startswith("1")
    del replicas.shards.texts[RING, "0"], replicas.shards.versions[RING, "0"]
    await replicas.shards.write(Shard(ring=RING, name="0"))

    if owner:
        assert await replicas.one.destroy(replicas.keys, owner=owner, zones=[PERSONAL]) == [key.id]
    else:
        assert await replicas.one.destroy_zone(replicas.keys, PERSONAL) == [key.id]


async def test_keys_below_a_lost_shard_are_not_skipped() -> None:
    replicas, scope = Replicas(), scope_hash(PERSONAL, "ada")
    lost = shard_at(scope, 1)
    await replicas.shards.write(Shard(ring=RING, name="0", is_closed=True, child_digits=lost[1]))
    await replicas.shards.write(Shard(ring=RING, name=lost, is_closed=True))
    key = await replicas.get_key()
    assert shard_of_key(key.id) == shard_at(scope, 2)
    del replicas.shards.texts[RING, lost], replicas.shards.versions[RING, lost]
    fresh = Keyring(replicas.shards, replicas.clock)

    await expect_unavailable(fresh.find_key(replicas.keys, PERSONAL, "ada"))
    assert await fresh.has_zone_keys(replicas.keys, PERSONAL)
    assert await fresh.destroy_zone(replicas.keys, PERSONAL) == [key.id]


async def test_destroy_zone_removes_keys_of_all_owners() -> None:
    replicas = Replicas()
    owners = [f"owner-{number}" for number in range(2 * MAX_SHARD_KEYS)]
    made = [await replicas.get_key(owner, zone) for owner in owners for zone in ("PROFESSIONAL", PERSONAL)]
    assert {key.id[0] for key in made} == {"0", "1"}

    gone = await replicas.one.destroy_zone(replicas.keys, "PROFESSIONAL")

    assert gone == sorted(key.id for key in made if key.zone == "PROFESSIONAL")
    kept = {key.id: key for key in made if key.zone == PERSONAL}
    assert await replicas.read_keys(*(key.id for key in made)) == kept
    assert await replicas.read_keys(*(key.id for key in made), by=Keyring(replicas.shards, replicas.clock)) == kept
    assert await replicas.other.destroy_zone(replicas.keys, "PROFESSIONAL") == []


async def full(replicas: Replicas) -> DataKey:
    """Fill the first shard; return a key of another shard."""
    for number in range(MAX_SHARD_KEYS):
        await replicas.get_key(f"user-{number}")
    return await replicas.get_key("ada")


async def test_lost_shard_is_not_recreated() -> None:
    """The keys of a lost shard are usable again once a backup is restored."""

    replicas = Replicas()
    key = await full(replicas)
    place = RING, shard_of_key(key.id) or ""
    backup = replicas.shards.texts.pop(place), replicas.shards.versions.pop(place)
    replicas.passes(FRESH_MS)

    for replica in (replicas.one, Keyring(replicas.shards, replicas.clock)):
        assert "backup" in str(await expect_unavailable(replicas.get_key("ada", by=replica)))
    assert place not in replicas.shards.texts
    replicas.shards.texts[place], replicas.shards.versions[place] = backup

    assert await replicas.get_key("ada") == key


async def test_missing_child_record_is_repaired() -> None:
    """A replica may crash between creating a shard and recording it in the parent."""

    replicas = Replicas()
    await full(replicas)
    first = await replicas.shards.read(RING, "0")
    await replicas.shards.write(replace(first, child_digits=""))
    fresh = Keyring(replicas.shards, replicas.clock)

    key = await replicas.get_key("ada", by=fresh)

    assert (await replicas.shards.read(RING, "0")).child_digits == key.id[1]
    writes = replicas.shards.calls["write"]
    assert await replicas.get_key("ada", by=fresh) == key
    assert replicas.shards.calls["write"] == writes


async def test_key_needs_a_recorded_shard() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.get_key(f"user-{number}")

    class Dying(FakeKeyShards):
        async def write(self, shard: Shard) -> str:
            if shard.child_digits:
                raise TransientError("the store is away")
            return await FakeKeyShards.write(self, shard)

    dying = Keyring(Dying(replicas.shards.texts, replicas.shards.versions, replicas.shards.calls), replicas.clock)

    await expect_unavailable(replicas.get_key("ada", by=dying))

    assert [name[0] for name in await replicas.shards.list_names(RING)] == ["0", "1"]
    assert (await replicas.get_key("ada")).id.startswith("1")


async def test_shard_closed_during_creation_continues() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS - 1):
        await replicas.get_key(f"user-{number}")

    found = await asyncio.gather(replicas.get_key("ada", by=replicas.one), replicas.get_key("bob", by=replicas.other))

    assert sorted(key.id[0] for key in found) == ["0", "1"]


async def test_full_shards_create_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    monkeypatch.setattr(Shard, "is_full", True)

    error = await expect_unavailable(replicas.get_key())

    assert "room" in str(error)
    assert replicas.shards.texts == {}


async def test_unavailable_store_fails_every_call() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    fresh = Keyring(replicas.shards, replicas.clock)
    replicas.shards.error = TransientError("secrets is forbidden: User x")

    for call in (
        replicas.read_keys(key.id, by=fresh),
        replicas.get_key(by=fresh),
        fresh.check_stored(replicas.keys, [key.id]),
        fresh.destroy(replicas.keys, owner="ada", zones=[PERSONAL]),
        fresh.destroy_zone(replicas.keys, PERSONAL),
    ):
        error = await expect_unavailable(call)
        assert error.retry_after_s > 0
        assert "User x" not in str(error)
    replicas.shards.error = None
    assert await replicas.read_keys(key.id, by=fresh) == {key.id: key}


async def test_concurrent_readers_share_a_failure() -> None:
    replicas = Replicas()
    replicas.shards.error = TransientError("away")

    await asyncio.gather(*(expect_unavailable(replicas.read_keys(new_key_id("0"))) for _ in range(50)))

    assert replicas.shards.calls.total() <= 2


@pytest.mark.parametrize("error", [TransientError("not handed over"), SpecInvalid("WrappingKeyInvalid", "value xyz")])
async def test_missing_wrapping_key_blocks_access(error: TransientError | SpecInvalid) -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    replicas.wrapping.error = error

    assert await replicas.read_keys(key.id) == {key.id: key}
    replicas.passes(FRESH_MS)

    assert "xyz" not in str(await expect_unavailable(replicas.read_keys(key.id)))
    await expect_unavailable(replicas.get_key("bob"))
    assert replicas.shards.calls["write"] == 1


async def test_rotated_wrapping_key_is_read_again() -> None:
    replicas = Replicas()
    await replicas.get_key("bob", by=replicas.one)
    replicas.wrapping.rotate()
    key = await replicas.get_key("ada", by=replicas.other)

    replicas.passes(MIN_REREAD_MS)

    assert await replicas.read_keys(key.id, by=replicas.one) == {key.id: key}


async def test_unknown_wrapping_key_is_unavailable() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    replicas.wrapping.rotate()
    replicas.wrapping.forget_previous()

    error = await expect_unavailable(replicas.read_keys(key.id, by=replicas.other))

    assert ".previous" in str(error)


async def test_concurrent_first_key_is_not_lost() -> None:
    replicas = Replicas()

    async def has_sealed() -> bool:
        await replicas.get_key(by=replicas.other)
        return True

    key = await replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")

    assert key == await replicas.get_key(by=replicas.other)


async def test_invalid_id_is_absent_without_a_call() -> None:
    replicas = Replicas()

    assert await replicas.read_keys("", "../../etc", "x" * 32, "4" + "0" * 31) == {}
    assert replicas.shards.calls.total() == 0


async def test_lost_keys_are_unavailable_until_restored() -> None:
    replicas = Replicas()
    key, other = await replicas.get_key(), await replicas.get_key("bob")
    backup = dict(replicas.shards.texts), dict(replicas.shards.versions)
    await replicas.one.destroy(replicas.keys, owner="bob", zones=[PERSONAL])
    await replicas.shards.delete(RING)
    replicas.passes(FRESH_MS)
    replicas.keys = replace(replicas.keys, has_sealed=has_sealed)

    assert "backup" in str(await expect_unavailable(replicas.read_keys(key.id, other.id)))

    replicas.shards.texts, replicas.shards.versions = backup
    assert list(await replicas.read_keys(key.id)) == [key.id]


async def test_remaining_keys_are_found_after_partial_loss() -> None:
    replicas = Replicas()
    key = await replicas.get_key()
    replicas.wrapping.rotate()
    replicas.wrapping.forget_previous()
    other = await replicas.get_key("bob", by=replicas.other)

    found = await replicas.read_keys(key.id, other.id, new_key_id("1a"), by=replicas.other)

    assert found == {other.id: other}


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_lost_keys_are_not_replaced(is_sealed: bool) -> None:
    replicas = Replicas()

    async def has_sealed() -> bool:
        return is_sealed

    writing = replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")

    if is_sealed:
        assert "backup" in str(await expect_unavailable(writing))
    else:
        assert (await writing).id in replicas.shards.texts[RING, "0"]
    assert bool(replicas.shards.texts) is not is_sealed


async def test_cached_lost_keys_are_not_replaced() -> None:
    replicas = Replicas()
    await replicas.get_key("bob")
    await replicas.shards.delete(RING)

    async def has_sealed() -> bool:
        return True

    await expect_unavailable(
        replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")
    )
    assert replicas.shards.texts == {}


async def test_existing_keys_skip_the_memory_check() -> None:
    replicas = Replicas()
    await replicas.get_key("bob")

    async def has_sealed() -> bool:
        raise AssertionError

    await replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")


async def test_lost_write_response_leaves_one_key() -> None:
    replicas = Replicas()
    replicas.shards.lost = TransientError("no answer")
    await expect_unavailable(replicas.get_key())

    key = await replicas.get_key()

    assert replicas.shards.texts[RING, "0"].count(PERSONAL) == 1
    assert key.id in replicas.shards.texts[RING, "0"]


async def test_endless_conflicts_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(FakeKeyShards):
        async def write(self, shard: Shard) -> str:
            self.calls["write"] += 1
            # A conflict is a TransientError too, like an unavailable store.
            raise KubernetesConflict("changed since", status=409, causes=False)

    monkeypatch.setattr("agentmemory_operator.zones.shard_cache._WAIT_S", 0)
    replicas = Replicas(shards=Busy())

    assert "concurrently" in str(await expect_unavailable(replicas.get_key()))
    assert replicas.shards.calls["write"] == MAX_WRITE_ATTEMPTS


async def test_cache_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_KEYS", 10)
    monkeypatch.setattr(module, "MAX_OPEN_KEYS", 3)
    monkeypatch.setattr(module, "MAX_RINGS", 2)
    replicas = Replicas()

    for number in range(6):
        agent = AgentKeys(replace(RING, agent=f"agent-{number}"), replicas.wrapping)
        for user in range(3):
            await replicas.one.get_or_create_key(agent, PERSONAL, f"user-{user}")

    ring = replicas.one
    assert (len(ring._open), len(ring._wrapping._known)) == (3, 2)
    assert 0 < len(ring._shards._results) <= 3


async def test_find_key_creates_no_key() -> None:
    clock, shards = FakeClock(), FakeKeyShards()
    one, other = (Keyring(shards, clock) for _ in range(2))
    keys = AgentKeys(RING, FakeWrapping())

    assert await one.find_key(keys, "PERSONAL", "ada") is None
    assert shards.calls["write"] == 0
    made = await other.get_or_create_key(keys, "PERSONAL", "ada")
    assert await one.find_key(keys, "PERSONAL", "ada") == made


async def test_find_key_rotates_no_key() -> None:
    clock, shards = FakeClock(), FakeKeyShards()
    ring, keys = Keyring(shards, clock), AgentKeys(RING, FakeWrapping())
    made = await ring.get_or_create_key(keys, "PERSONAL", "ada")
    clock.move(ms=1000)
    keys, calls = replace(keys, rotate_before_ms=clock.now_ms()), shards.calls["write"]

    assert await ring.find_key(keys, "PERSONAL", "ada") == made
    assert shards.calls["write"] == calls
    assert (await ring.get_or_create_key(keys, "PERSONAL", "ada")).id != made.id


async def test_unknown_ids_are_cached_and_limited() -> None:
    clock, shards = FakeClock(), FakeKeyShards()
    ring, keys = Keyring(shards, clock), AgentKeys(RING, FakeWrapping())
    made = await ring.get_or_create_key(keys, "PERSONAL", "ada")
    planted = {new_key_id("0") for _ in range(3)} | {new_key_id(f"3{number:03x}") for number in range(1000)}

    first = await ring.read_keys(keys, {made.id, *sorted(planted)[:3]})
    calls = shards.calls.total()
    again = await ring.read_keys(keys, {made.id, *sorted(planted)[:3]})

    assert (set(first), set(again), shards.calls.total()) == ({made.id}, {made.id}, calls)
    with contextlib.suppress(KeysUnavailable):
        await ring.read_keys(keys, planted)
    assert shards.calls.total() - calls <= 2 * MAX_SHARDS_PER_READ
    clock.move(ms=FRESH_MS + 1)
    await ring.read_keys(keys, {made.id, *sorted(planted)[:3]})
    assert shards.calls.total() > calls
