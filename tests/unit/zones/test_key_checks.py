"""KeyChecks: the KeysUnavailable condition, the key count, and the rotation of the wrapping key."""

from typing import Any

import pytest

from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret, Owner, slot_name
from agentmemory_operator.connections.rules.host_lists import NOWHERE, Destination
from agentmemory_operator.errors import LeadershipLost, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable
from agentmemory_operator.spec.kinds.conditions import find_condition
from agentmemory_operator.zones.key_checks import (
    CHECK_PERIOD_S,
    MAX_CENSUS_AGE_MS,
    RETRY_PERIOD_S,
    SETTLED_S,
    KeyChecks,
)
from agentmemory_operator.zones.rules.entries import MAX_SHARD_KEYS, Ring
from agentmemory_operator.zones.rules.health import TROUBLE_REASONS
from agentmemory_operator.zones.wrapping_keys import parse_wrapping_keys
from tests.support.engine.fakes import FakeClock, FakeCluster, FakeHandoverStore, FakeSecrets
from tests.support.metrics import collect_samples
from tests.support.spec.documents import memory_document
from tests.support.zones import FakeKeyShards, FakeWrapping, agent_keys, keyring, new_wrapping_key

KEY = Key(AGENT_MEMORY, "agents", "probe")
RING = Ring("agents", "probe")
SECRET, PREVIOUS = ("agents", "zones", "key"), ("agents", "zones", "key.previous")
ZONES = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}}
SETTLED_MS = int(SETTLED_S * 1000)


class Bench:
    """The key checks of one object, and the reconcile passes that write their result."""

    def __init__(
        self, *, shards: FakeKeyShards | None = None, has_store: bool = True, hands_over: bool = False
    ) -> None:
        self.table, self.cluster, self.clock = ObjectTable(), FakeCluster(), FakeClock()
        self.secrets = FakeSecrets({SECRET: new_wrapping_key()})
        self.shards = FakeKeyShards()
        self.asked: list[Key] = []
        self.store = FakeHandoverStore()
        self.handover: Any = None
        if hands_over:
            nobody: Any = None
            self.handover = AgentSecrets(self.store, self.secrets, nobody, nobody, self.clock)
        self.upkeep = self.another(has_store=has_store)
        self.put()

    def another(self, *, has_store: bool = True) -> KeyChecks:
        """Return the key checks of an operator that just started."""
        return KeyChecks(
            *(self.table, self.cluster, self.clock, self.asked.append, self.secrets),
            shards=self.shards if has_store else None,
            handover=self.handover,
        )

    def put(self, *, metadata: Json | None = None, **spec: Any) -> None:
        status = (self.table.get(KEY) or {}).get("status") or {}
        document = memory_document(metadata=metadata, **({"zones": ZONES} | spec))
        self.table.put(document | {"status": status})

    async def fill(self, *users: str) -> None:
        """Create a key for each user, as the API does."""
        wrapping = FakeWrapping(self.wrapping)
        for user in users:
            await keyring(self.clock, self.shards).get_or_create_key(agent_keys(RING, wrapping), "PERSONAL", user)

    @property
    def wrapping(self) -> Any:
        return parse_wrapping_keys(
            self.secrets.values[SECRET], self.secrets.values.get(PREVIOUS), secret="s", key="key"
        )

    def rotate(self) -> None:
        """Write a new wrapping key to the Secret, next to the previous one."""
        self.secrets.values = {SECRET: new_wrapping_key(), PREVIOUS: self.secrets.values[SECRET]}

    def hand_over(self) -> None:
        """Copy the current values of the Secret to the API."""
        values = {slot_name(reference, NOWHERE): value for reference, value in self.secrets.values.items()}
        self.store.stored["probe"] = AgentSecret(
            slug="probe", owner=Owner("agents", "probe", "uid-probe"), values=values
        )

    async def look(self) -> float | None:
        """Run one check and the requested passes; return the seconds until the next check."""
        after_s = await self.upkeep._check(KEY)
        while self.asked:
            self.asked.clear()
            self.write()
        return after_s

    def write(self, status: Json | None = None) -> None:
        """Write the status as a reconcile pass does."""
        document = self.table.get(KEY)
        assert document is not None
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.table.put_status(KEY, "uid-probe", self.upkeep.update_status(KEY, document, status or ready), "")

    @property
    def status(self) -> Json:
        return dict((self.table.get(KEY) or {}).get("status") or {})

    @property
    def condition(self) -> tuple[str, str]:
        found = find_condition(self.status, "KeysUnavailable")
        return found.get("status", ""), found.get("reason", "")

    @property
    def message(self) -> str:
        return str(find_condition(self.status, "KeysUnavailable").get("message"))

    @property
    def event_reasons(self) -> list[tuple[str, str]]:
        return [(event.type, event.reason) for event in self.cluster.events]


async def test_existing_keys_are_counted_and_available() -> None:
    bench = Bench()
    await bench.fill("ada", "bob")

    after_s = await bench.look()

    assert bench.condition == ("False", "KeysAvailable")
    assert bench.status["zones"] == {"shards": 1, "keys": 2, "wrappingKey": bench.wrapping.fingerprint}
    assert after_s is not None
    assert after_s >= CHECK_PERIOD_S * 0.8
    assert bench.event_reasons == []


async def test_object_without_zones_is_not_checked() -> None:
    bench = Bench()
    bench.put(zones=None)

    assert await bench.look() is None
    bench.write()

    assert (bench.secrets.reads, bench.shards.calls.total()) == (0, 0)
    assert (bench.condition, "zones" in bench.status) == (("", ""), False)


async def test_removed_zones_remove_the_condition() -> None:
    bench = Bench()
    await bench.look()
    bench.put(zones=None)
    bench.write(bench.status)

    assert (bench.condition, "zones" in bench.status) == (("", ""), False)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "WrappingKeyMissing"),
        ({PREVIOUS: new_wrapping_key()}, "WrappingKeyMissing"),
        ({SECRET: "c2hvcnQ="}, "WrappingKeyInvalid"),
        ({SECRET: new_wrapping_key(), PREVIOUS: "c2hvcnQ="}, "WrappingKeyInvalid"),
    ],
)
async def test_invalid_wrapping_key_is_reported_without_value(
    values: dict[tuple[str, str, str], str], reason: str
) -> None:
    bench = Bench()
    bench.secrets.values = values

    assert await bench.look() == RETRY_PERIOD_S

    assert bench.condition == ("True", reason)
    assert bench.event_reasons == [("Warning", reason)]
    assert "agents/zones" in bench.message
    assert not any(value in bench.message for value in values.values())


async def test_event_is_posted_once() -> None:
    bench = Bench()
    bench.secrets.values = {}

    for _ in range(3):
        await bench.look()
    bench.upkeep = bench.another()
    await bench.look()

    assert bench.event_reasons == [("Warning", "WrappingKeyMissing")]


async def test_restored_wrapping_key_makes_keys_available() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    values, bench.secrets.values = bench.secrets.values, {}
    await bench.look()
    assert (bench.condition[1], bench.status["zones"]["keys"]) == ("WrappingKeyMissing", 1)
    bench.secrets.values = values

    await bench.look()

    assert bench.condition == ("False", "KeysAvailable")


async def test_missing_key_store_names_the_setting() -> None:
    bench = Bench(has_store=False)

    assert await bench.look() == RETRY_PERIOD_S
    assert bench.condition == ("True", "KeyStoreMissing")
    assert "AGENTMEMORY_ZONE_KEYS_NAMESPACE" in bench.message


async def test_unavailable_store_is_reported_until_restored() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    bench.shards.error = TransientError("no answer")
    await bench.look()
    assert bench.condition == ("True", "KeyStoreUnavailable")
    assert "no answer" in bench.message
    bench.shards.error = None

    await bench.look()

    assert (bench.condition, bench.status["zones"]["keys"]) == (("False", "KeysAvailable"), 1)


async def test_damaged_shard_does_not_block_the_others() -> None:
    bench = Bench()
    await bench.fill(*(f"user-{number}" for number in range(MAX_SHARD_KEYS + 2)))
    await bench.look()
    _, damaged, *others = await bench.shards.list_names(RING)
    bench.shards.texts[RING, damaged] = "{}"
    bench.rotate()
    bench.clock.move(ms=SETTLED_MS)

    await bench.look()

    assert bench.condition == ("True", "KeysUnreadable")
    assert bench.message.startswith(f"1 of {len(others) + 2} data key shards cannot be read; first error")
    wrapping = bench.wrapping
    entries = [entry for name in ("0", *others) for entry in (await bench.shards.read(RING, name)).entries.values()]
    assert {entry.wrapping_fingerprint for entry in entries} == {wrapping.fingerprint}
    assert bench.status["zones"]["wrappingKey"] != wrapping.fingerprint


async def test_counts_of_pass_and_check_are_merged() -> None:
    bench = Bench()
    await bench.fill("ada")
    bench.write({"conditions": [], "zones": {"toReseal": 7}})
    assert bench.status["zones"] == {"toReseal": 7}
    await bench.upkeep._check(KEY)

    bench.write({"conditions": [], "zones": {"toReseal": 4}})
    assert bench.status["zones"] == {
        **{"shards": 1, "keys": 1, "wrappingKey": bench.wrapping.fingerprint},
        "toReseal": 4,
    }
    asked = bench.asked.copy()
    await bench.upkeep._check(KEY)
    assert bench.asked == asked, "nothing is news"

    bench.write({"conditions": []})
    assert "toReseal" not in bench.status["zones"]


async def test_lost_leadership_writes_no_status() -> None:
    bench = Bench()
    bench.shards.error = LeadershipLost("another leads")

    with pytest.raises(LeadershipLost):
        await bench.look()
    assert bench.status == {}


async def test_keys_are_not_counted_at_every_check() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    reads = bench.shards.calls["read"]

    await bench.fill("bob")
    reads_of_the_api = bench.shards.calls["read"] - reads
    for _ in range(3):
        await bench.look()
    assert bench.shards.calls["read"] == reads + reads_of_the_api

    bench.clock.move(ms=MAX_CENSUS_AGE_MS)
    await bench.look()
    assert bench.status["zones"]["keys"] == 2


async def test_rotation_rewraps_after_settling_time() -> None:
    """The event then permits removal of the previous wrapping key."""

    bench = Bench()
    await bench.fill("ada", "bob")
    await bench.look()
    first = bench.wrapping.fingerprint
    bench.rotate()

    await bench.look()
    assert bench.status["zones"]["wrappingKey"] == first
    assert "keep key 'key.previous' in Secret zones" in bench.message
    bench.clock.move(ms=SETTLED_MS)
    await bench.look()

    assert bench.status["zones"] == {"shards": 1, "keys": 2, "wrappingKey": bench.wrapping.fingerprint}
    assert bench.event_reasons == [("Normal", "KeysRewrapped")]
    assert "'key.previous' can be removed from Secret zones" in bench.cluster.events[0].message
    del bench.secrets.values[PREVIOUS]  # type: ignore[attr-defined]
    await bench.look()
    assert bench.condition == ("False", "KeysAvailable")
    assert bench.event_reasons == [("Normal", "KeysRewrapped")]


async def test_rotation_includes_late_keys() -> None:
    """A replica may still wrap a new key with the previous wrapping key."""

    bench = Bench()
    await bench.look()
    late = FakeWrapping(bench.wrapping)
    bench.rotate()
    await bench.look()
    await keyring(bench.clock, bench.shards).get_or_create_key(agent_keys(RING, late), "PERSONAL", "late")
    bench.clock.move(ms=SETTLED_MS)

    await bench.look()

    shard = await bench.shards.read(RING, "0")
    assert {entry.wrapping_fingerprint for entry in shard.entries.values()} == {bench.wrapping.fingerprint}


async def test_restart_restarts_the_settling_time() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    first = bench.wrapping.fingerprint
    bench.rotate()
    await bench.look()
    bench.clock.move(ms=SETTLED_MS - 1)
    bench.upkeep = bench.another()

    await bench.look()
    assert bench.status["zones"]["wrappingKey"] == first
    bench.clock.move(ms=SETTLED_MS)
    await bench.look()

    assert bench.status["zones"]["wrappingKey"] == bench.wrapping.fingerprint
    assert bench.event_reasons == [("Normal", "KeysRewrapped")]


async def test_rotation_waits_until_the_api_has_the_key() -> None:
    bench = Bench(hands_over=True)
    bench.hand_over()
    await bench.fill("ada")
    await bench.look()
    bench.rotate()
    writes = bench.shards.calls["write"]

    assert await bench.upkeep._check(KEY) is not None
    assert (bench.shards.calls["write"], bench.asked) == (writes, [KEY])
    bench.asked.clear()
    await bench.upkeep._check(KEY)
    assert bench.asked == [], "one pass hands over, or says why it cannot"

    bench.hand_over()
    await bench.look()
    shard = await bench.shards.read(RING, "0")
    assert {entry.wrapping_fingerprint for entry in shard.entries.values()} == {bench.wrapping.fingerprint}


async def test_lost_wrapping_key_is_reported_with_remedy() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    lost = bench.secrets.values[SECRET]
    fingerprint = bench.wrapping.fingerprint
    bench.secrets.values = {SECRET: new_wrapping_key()}

    await bench.look()

    assert bench.condition == ("True", "KeysUnreadable")
    assert bench.message.startswith("1 of 1 data keys cannot be opened")
    assert fingerprint in bench.message
    bench.secrets.values = {**bench.secrets.values, PREVIOUS: lost}
    await bench.look()
    assert bench.condition == ("False", "KeysAvailable")


@pytest.mark.parametrize(
    "after",
    [{"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}, {"index": {"hnsw": {"m": 1}}}],
    ids=["deleted", "not valid"],
)
async def test_deleted_or_invalid_object_keeps_its_status(after: Json) -> None:
    bench = Bench()
    await bench.look()
    before = bench.status["zones"]
    bench.put(**after)

    assert await bench.upkeep._check(KEY) is None
    bench.write({"conditions": [{"type": "Ready", "status": "False"}]})

    assert (bench.condition, bench.status["zones"]) == (("False", "KeysAvailable"), before)


async def test_object_without_its_slug_is_not_checked() -> None:
    bench = Bench()
    older = memory_document("older", metadata={"creationTimestamp": "2025-01-01T00:00:00Z"}, agent="probe")
    bench.table.put(older)

    assert await bench.look() is None
    bench.write()
    assert bench.condition == ("", "")


async def test_recreated_object_has_no_old_condition() -> None:
    bench = Bench()
    await bench.look()
    bench.secrets.values = {}
    await bench.look()
    bench.table.remove(KEY)
    bench.put(metadata={"uid": "uid-other"})

    bench.write()

    assert bench.condition == ("", "")


@pytest.mark.parametrize("is_new", [False, True], ids=["an operator that saw them", "one that just started"])
async def test_missing_shards_are_reported_until_restored(is_new: bool) -> None:
    bench = Bench()
    await bench.fill("ada", "bob")
    await bench.look()
    kept = dict(bench.shards.texts), dict(bench.shards.versions)
    await bench.shards.delete(RING)
    if is_new:
        bench.upkeep = bench.another()

    for _ in range(2):
        await bench.look()
    assert bench.condition == ("True", "KeysLost")
    assert bench.message.startswith("1 of 1 data key shards are missing")
    assert bench.status["zones"] == {"shards": 1, "keys": 0, "wrappingKey": bench.wrapping.fingerprint}
    assert bench.event_reasons == [("Warning", "KeysLost")]
    bench.shards.texts, bench.shards.versions = kept

    await bench.look()

    assert (bench.condition, bench.status["zones"]["keys"]) == (("False", "KeysAvailable"), 2)


async def test_unreadable_previous_key_is_not_missing() -> None:
    bench = Bench()
    await bench.look()
    bench.rotate()

    class Failing(FakeSecrets):
        async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
            if key == PREVIOUS[2]:
                raise TransientError("no answer")
            return await FakeSecrets.read(self, namespace, name, key, to=to)

    bench.upkeep.secrets = Failing(bench.secrets.values)
    before = bench.status

    with pytest.raises(TransientError, match="no answer"):
        await bench.look()
    assert bench.status == before


async def test_metric_counts_agents_by_reason() -> None:
    bench = Bench()
    (gauge,) = bench.upkeep.metrics
    await bench.look()
    assert [*collect_samples(gauge).values()] == [0] * len(TROUBLE_REASONS)
    bench.secrets.values = {}

    await bench.look()

    assert collect_samples(gauge)['agentmemory_zone_keys_unavailable{reason="WrappingKeyMissing"}'] == 1
