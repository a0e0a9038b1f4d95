"""The keyring of a replica, and of two that share their shards."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

import pytest

from agentmemory_operator.adapters.kubernetes.transport import KubernetesConflict
from agentmemory_operator.errors import KeysUnavailable, SpecInvalid, TransientError
from agentmemory_operator.zones import keyring as module
from agentmemory_operator.zones.keyring import FRESH_MS, MAX_SHARDS_PER_READ, AgentKeys, DataKey, Keyring
from agentmemory_operator.zones.rules.entries import MAX_SHARD_KEYS, Ring, new_key_id, shard_of_key
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

    async def writing(self, owner: str = "ada", zone: str = PERSONAL, by: Keyring | None = None) -> DataKey:
        return await (by or self.one).get_or_create_key(self.keys, zone, owner)

    async def reading(self, *ids: str, by: Keyring | None = None) -> dict[str, DataKey]:
        return await (by or self.one).read_keys(self.keys, ids)


async def has_sealed() -> bool:
    return True


async def unavailable(call: Awaitable[object]) -> KeysUnavailable:
    with pytest.raises(KeysUnavailable) as raised:
        await call
    return raised.value


async def test_a_key_is_kept_before_it_is_handed_out_and_every_replica_finds_it() -> None:
    replicas = Replicas()

    key = await replicas.writing()

    assert key.id in replicas.shards.texts[RING, "0"]
    assert (len(key.cipher_key), len(key.mac), len(key.id_secret), key.zone) == (32, 32, 32, PERSONAL)
    assert await replicas.reading(key.id, by=replicas.other) == {key.id: key}
    assert await replicas.writing(by=replicas.other) == key
    assert replicas.shards.calls["write"] == 1


async def test_owners_zones_and_agents_have_keys_of_their_own() -> None:
    replicas = Replicas()
    elsewhere = AgentKeys(Ring("other", "support-bot"), FakeWrapping())

    keys = [await replicas.writing("ada"), await replicas.writing("bob"), await replicas.writing("ada", SENSITIVE)]
    keys.append(await replicas.one.get_or_create_key(elsewhere, PERSONAL, "ada"))

    assert len({key.cipher_key for key in keys} | {key.mac for key in keys}) == 8
    for key in keys[:3]:
        assert await replicas.one.read_keys(elsewhere, [key.id]) == {}


async def test_no_secret_shows_in_text_and_none_is_kept() -> None:
    replicas = Replicas()

    key = await replicas.writing()

    assert "\\x" not in repr(key)
    assert "ada" not in replicas.shards.texts[RING, "0"]
    assert replicas.wrapping.keys.current.hex() not in replicas.shards.texts[RING, "0"]


async def test_of_many_at_once_one_makes_the_key() -> None:
    replicas = Replicas()

    found = await asyncio.gather(*(replicas.writing(by=by) for by in (replicas.one, replicas.other) for _ in range(20)))

    assert len(set(found)) == 1
    assert replicas.shards.texts[RING, "0"].count(PERSONAL) == 1


async def test_what_is_known_costs_nothing_and_is_looked_at_again_by_its_version() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    before = replicas.shards.calls.total(), replicas.wrapping.reads

    replicas.passes(FRESH_MS - 1)
    assert await replicas.writing() == key
    assert (replicas.shards.calls.total(), replicas.wrapping.reads) == before

    replicas.passes(1)
    calls = replicas.shards.calls.copy()
    assert await replicas.writing() == key
    assert replicas.shards.calls - calls == {"version": 1}


async def test_after_a_clock_was_set_back_nothing_counts_as_fresh() -> None:
    replicas = Replicas()
    await replicas.writing()

    replicas.passes(-3_600_000)
    replicas.wrapping.error = TransientError("away")

    await unavailable(replicas.writing())


async def test_a_key_that_another_replica_made_is_found_at_once() -> None:
    replicas = Replicas()
    await replicas.writing("bob", by=replicas.other)

    key = await replicas.writing("ada", by=replicas.one)

    assert list(await replicas.reading(key.id, by=replicas.other)) == [key.id]


async def test_a_destroyed_key_is_absent_here_at_once_and_elsewhere_within_a_minute() -> None:
    replicas = Replicas()
    key, kept = await replicas.writing(), await replicas.writing("bob")
    await replicas.reading(key.id, kept.id, by=replicas.other)

    assert await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL, SENSITIVE]) == [key.id]

    assert key.id not in replicas.shards.texts[RING, "0"]
    assert list(await replicas.reading(key.id, kept.id)) == [kept.id]
    replicas.passes(FRESH_MS)
    assert list(await replicas.reading(key.id, kept.id, by=replicas.other)) == [kept.id]


async def test_destroying_again_destroys_nothing_more() -> None:
    replicas = Replicas()
    await replicas.writing()
    await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL])
    writes = replicas.shards.calls["write"]

    assert await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL]) == []
    assert replicas.shards.calls["write"] == writes


async def test_destroying_asks_for_no_wrapping_key() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    reads = replicas.wrapping.reads
    replicas.wrapping = FakeWrapping()

    assert await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL]) == [key.id]
    assert replicas.wrapping.reads + reads == reads


async def test_a_destroyed_key_s_successor_is_another_in_both_halves() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL])

    another = await replicas.writing()

    assert {another.id, another.cipher_key, another.mac}.isdisjoint({key.id, key.cipher_key, key.mac})


async def test_a_write_under_a_key_that_was_destroyed_meanwhile_is_not_confirmed() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    await replicas.one.check_stored(replicas.keys, [key.id])

    await replicas.other.destroy(replicas.keys, owner="ada", zones=[PERSONAL])

    error = await unavailable(replicas.one.check_stored(replicas.keys, [key.id]))
    assert "destroyed" in str(error)
    assert (await replicas.writing()).id != key.id


async def test_confirming_reads_no_shard_that_is_as_it_was_and_many_share_a_look() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    calls = replicas.shards.calls.copy()

    await asyncio.gather(*(replicas.one.check_stored(replicas.keys, [key.id]) for _ in range(50)))

    looks = replicas.shards.calls - calls
    assert looks.keys() == {"version"}
    assert looks.total() <= 2


async def test_closed_shards_lead_on_to_the_next_level() -> None:
    replicas = Replicas()
    owners = [f"user-{number}" for number in range(3 * MAX_SHARD_KEYS)]

    made = {owner: await replicas.writing(owner) for owner in owners}

    names = await replicas.shards.list_names(RING)
    assert names[0] == "0"
    assert {name[0] for name in names} == {"0", "1"}
    first = await replicas.shards.read(RING, "0")
    assert (first.is_closed, len(first.entries)) == (True, MAX_SHARD_KEYS)
    fresh = Keyring(replicas.shards, replicas.clock)
    found = await replicas.reading(*(key.id for key in made.values()), by=fresh)
    assert found == {key.id: key for key in made.values()}
    assert {owner: await replicas.writing(owner, by=fresh) for owner in owners} == made


async def test_a_shard_that_lost_a_key_stays_closed_and_an_owner_s_keys_go_from_every_level() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.writing(f"user-{number}")
    await replicas.one.destroy(replicas.keys, owner="user-0", zones=[PERSONAL])

    key = await replicas.writing("user-0")

    assert key.id.startswith("1")
    assert await replicas.one.destroy(replicas.keys, owner="user-0", zones=[PERSONAL]) == [key.id]
    assert await replicas.reading(key.id) == {}


async def test_an_owner_s_keys_go_from_behind_a_shard_that_was_lost_and_made_again() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.writing(f"user-{number}")
    key = await replicas.writing("ada")
    assert key.id.startswith("1")
    del replicas.shards.texts[RING, "0"], replicas.shards.versions[RING, "0"]
    await replicas.shards.write(Shard(ring=RING, name="0"))

    assert await replicas.one.destroy(replicas.keys, owner="ada", zones=[PERSONAL]) == [key.id]


async def test_all_keys_of_a_zone_go_whoever_owns_them_and_no_other_zone_s() -> None:
    replicas = Replicas()
    owners = [f"owner-{number}" for number in range(2 * MAX_SHARD_KEYS)]
    made = [await replicas.writing(owner, zone) for owner in owners for zone in ("PROFESSIONAL", PERSONAL)]
    assert {key.id[0] for key in made} == {"0", "1"}

    gone = await replicas.one.destroy_zone(replicas.keys, "PROFESSIONAL")

    assert gone == sorted(key.id for key in made if key.zone == "PROFESSIONAL")
    kept = {key.id: key for key in made if key.zone == PERSONAL}
    assert await replicas.reading(*(key.id for key in made)) == kept
    assert await replicas.reading(*(key.id for key in made), by=Keyring(replicas.shards, replicas.clock)) == kept
    assert await replicas.other.destroy_zone(replicas.keys, "PROFESSIONAL") == []


async def full(replicas: Replicas) -> DataKey:
    """Fill the first shard; return a key that lies in another."""
    for number in range(MAX_SHARD_KEYS):
        await replicas.writing(f"user-{number}")
    return await replicas.writing("ada")


async def test_a_shard_that_is_lost_is_not_made_again_and_comes_back_from_a_backup() -> None:
    replicas = Replicas()
    key = await full(replicas)
    place = RING, shard_of_key(key.id) or ""
    backup = replicas.shards.texts.pop(place), replicas.shards.versions.pop(place)
    replicas.passes(FRESH_MS)

    for replica in (replicas.one, Keyring(replicas.shards, replicas.clock)):
        assert "backup" in str(await unavailable(replicas.writing("ada", by=replica)))
    assert place not in replicas.shards.texts
    replicas.shards.texts[place], replicas.shards.versions[place] = backup

    assert await replicas.writing("ada") == key


async def test_who_dies_before_it_wrote_down_that_a_shard_is_there_leaves_that_to_the_next() -> None:
    replicas = Replicas()
    await full(replicas)
    first = await replicas.shards.read(RING, "0")
    await replicas.shards.write(replace(first, child_digits=""))
    fresh = Keyring(replicas.shards, replicas.clock)

    key = await replicas.writing("ada", by=fresh)

    assert (await replicas.shards.read(RING, "0")).child_digits == key.id[1]
    writes = replicas.shards.calls["write"]
    assert await replicas.writing("ada", by=fresh) == key
    assert replicas.shards.calls["write"] == writes


async def test_no_key_is_handed_out_before_it_is_written_down_that_its_shard_is_there() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS):
        await replicas.writing(f"user-{number}")

    class Dying(FakeKeyShards):
        async def write(self, shard: Shard) -> str:
            if shard.child_digits:
                raise TransientError("the store is away")
            return await FakeKeyShards.write(self, shard)

    dying = Keyring(Dying(replicas.shards.texts, replicas.shards.versions, replicas.shards.calls), replicas.clock)

    await unavailable(replicas.writing("ada", by=dying))

    assert [name[0] for name in await replicas.shards.list_names(RING)] == ["0", "1"]
    assert (await replicas.writing("ada")).id.startswith("1")


async def test_a_shard_that_closes_while_a_key_is_made_leads_on() -> None:
    replicas = Replicas()
    for number in range(MAX_SHARD_KEYS - 1):
        await replicas.writing(f"user-{number}")

    found = await asyncio.gather(replicas.writing("ada", by=replicas.one), replicas.writing("bob", by=replicas.other))

    assert sorted(key.id[0] for key in found) == ["0", "1"]


async def test_where_there_is_no_room_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    monkeypatch.setattr(Shard, "is_full", True)

    error = await unavailable(replicas.writing())

    assert "room" in str(error)
    assert replicas.shards.texts == {}


async def test_while_the_store_is_away_nothing_is_read_or_made_and_then_all_is_there() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    fresh = Keyring(replicas.shards, replicas.clock)
    replicas.shards.error = TransientError("secrets is forbidden: User x")

    for call in (
        replicas.reading(key.id, by=fresh),
        replicas.writing(by=fresh),
        fresh.check_stored(replicas.keys, [key.id]),
        fresh.destroy(replicas.keys, owner="ada", zones=[PERSONAL]),
        fresh.destroy_zone(replicas.keys, PERSONAL),
    ):
        error = await unavailable(call)
        assert error.retry_after_s > 0
        assert "User x" not in str(error)
    replicas.shards.error = None
    assert await replicas.reading(key.id, by=fresh) == {key.id: key}


async def test_who_waits_for_a_reading_that_fails_does_not_wait_for_another() -> None:
    replicas = Replicas()
    replicas.shards.error = TransientError("away")

    await asyncio.gather(*(unavailable(replicas.reading(new_key_id("0"))) for _ in range(50)))

    assert replicas.shards.calls.total() <= 2


@pytest.mark.parametrize("error", [TransientError("not handed over"), SpecInvalid("WrappingKeyInvalid", "value xyz")])
async def test_without_the_wrapping_key_nothing_opens(error: TransientError | SpecInvalid) -> None:
    replicas = Replicas()
    key = await replicas.writing()
    replicas.wrapping.error = error

    assert await replicas.reading(key.id) == {key.id: key}
    replicas.passes(FRESH_MS)

    assert "xyz" not in str(await unavailable(replicas.reading(key.id)))
    await unavailable(replicas.writing("bob"))
    assert replicas.shards.calls["write"] == 1


async def test_a_wrapping_key_that_was_rotated_is_read_again_at_once() -> None:
    replicas = Replicas()
    await replicas.writing("bob", by=replicas.one)
    replicas.wrapping.rotate()
    key = await replicas.writing("ada", by=replicas.other)

    replicas.passes(MIN_REREAD_MS)

    assert await replicas.reading(key.id, by=replicas.one) == {key.id: key}


async def test_a_key_under_an_unknown_wrapping_key_is_away_and_not_gone() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    replicas.wrapping.rotate()
    replicas.wrapping.forget_previous()

    error = await unavailable(replicas.reading(key.id, by=replicas.other))

    assert ".previous" in str(error)


async def test_a_first_key_that_another_replica_makes_meanwhile_is_not_taken_for_lost() -> None:
    replicas = Replicas()

    async def has_sealed() -> bool:
        await replicas.writing(by=replicas.other)
        return True

    key = await replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")

    assert key == await replicas.writing(by=replicas.other)


async def test_what_is_no_id_is_absent_and_asks_nobody() -> None:
    replicas = Replicas()

    assert await replicas.reading("", "../../etc", "x" * 32, "4" + "0" * 31) == {}
    assert replicas.shards.calls.total() == 0


async def test_lost_keys_are_not_taken_for_destroyed_and_come_back() -> None:
    replicas = Replicas()
    key, other = await replicas.writing(), await replicas.writing("bob")
    backup = dict(replicas.shards.texts), dict(replicas.shards.versions)
    await replicas.one.destroy(replicas.keys, owner="bob", zones=[PERSONAL])
    await replicas.shards.delete(RING)
    replicas.passes(FRESH_MS)
    replicas.keys = replace(replicas.keys, has_sealed=has_sealed)

    assert "backup" in str(await unavailable(replicas.reading(key.id, other.id)))

    replicas.shards.texts, replicas.shards.versions = backup
    assert list(await replicas.reading(key.id)) == [key.id]


async def test_of_keys_that_are_partly_lost_those_that_are_there_are_found() -> None:
    replicas = Replicas()
    key = await replicas.writing()
    replicas.wrapping.rotate()
    replicas.wrapping.forget_previous()
    other = await replicas.writing("bob", by=replicas.other)

    found = await replicas.reading(key.id, other.id, new_key_id("1a"), by=replicas.other)

    assert found == {other.id: other}


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_no_key_is_made_in_the_place_of_lost_ones(is_sealed: bool) -> None:
    replicas = Replicas()

    async def has_sealed() -> bool:
        return is_sealed

    writing = replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")

    if is_sealed:
        assert "backup" in str(await unavailable(writing))
    else:
        assert (await writing).id in replicas.shards.texts[RING, "0"]
    assert bool(replicas.shards.texts) is not is_sealed


async def test_keys_that_are_lost_while_they_are_known_are_not_replaced() -> None:
    replicas = Replicas()
    await replicas.writing("bob")
    await replicas.shards.delete(RING)

    async def has_sealed() -> bool:
        return True

    await unavailable(replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada"))
    assert replicas.shards.texts == {}


async def test_an_agent_that_has_keys_is_not_asked_for_sealed_memories() -> None:
    replicas = Replicas()
    await replicas.writing("bob")

    async def has_sealed() -> bool:
        raise AssertionError

    await replicas.one.get_or_create_key(replace(replicas.keys, has_sealed=has_sealed), PERSONAL, "ada")


async def test_a_write_whose_answer_is_lost_leaves_one_key() -> None:
    replicas = Replicas()
    replicas.shards.lost = TransientError("no answer")
    await unavailable(replicas.writing())

    key = await replicas.writing()

    assert replicas.shards.texts[RING, "0"].count(PERSONAL) == 1
    assert key.id in replicas.shards.texts[RING, "0"]


async def test_who_is_never_ahead_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(FakeKeyShards):
        async def write(self, shard: Shard) -> str:
            self.calls["write"] += 1
            # A TransientError as well, which says that the store is away.
            raise KubernetesConflict("changed since", status=409, causes=False)

    monkeypatch.setattr("agentmemory_operator.zones.shard_cache._WAIT_S", 0)
    replicas = Replicas(shards=Busy())

    assert "concurrently" in str(await unavailable(replicas.writing()))
    assert replicas.shards.calls["write"] == MAX_WRITE_ATTEMPTS


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_looking_for_a_key_makes_none() -> None:
    clock, shards = FakeClock(), FakeKeyShards()
    one, other = (Keyring(shards, clock) for _ in range(2))
    keys = AgentKeys(RING, FakeWrapping())

    assert await one.find_key(keys, "PERSONAL", "ada") is None
    assert shards.calls["write"] == 0
    made = await other.get_or_create_key(keys, "PERSONAL", "ada")
    assert await one.find_key(keys, "PERSONAL", "ada") == made


async def test_looking_for_a_key_that_is_to_be_replaced_replaces_none() -> None:
    clock, shards = FakeClock(), FakeKeyShards()
    ring, keys = Keyring(shards, clock), AgentKeys(RING, FakeWrapping())
    made = await ring.get_or_create_key(keys, "PERSONAL", "ada")
    clock.move(ms=1000)
    keys, calls = replace(keys, rotate_before_ms=clock.now_ms()), shards.calls["write"]

    assert await ring.find_key(keys, "PERSONAL", "ada") == made
    assert shards.calls["write"] == calls
    assert (await ring.get_or_create_key(keys, "PERSONAL", "ada")).id != made.id


async def test_names_of_keys_that_are_none_are_not_looked_for_at_every_reading() -> None:
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
