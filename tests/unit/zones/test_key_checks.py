"""The keys of an object's zones are looked after: the condition, the count, another wrapping key."""

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
    """The upkeep of one object, and the passes that write down what it says."""

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
        """Return the upkeep of an operator that just started."""
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
        """Make a key for each user, as the API does."""
        wrapping = FakeWrapping(self.wrapping)
        for user in users:
            await keyring(self.clock, self.shards).get_or_create_key(agent_keys(RING, wrapping), "PERSONAL", user)

    @property
    def wrapping(self) -> Any:
        return parse_wrapping_keys(
            self.secrets.values[SECRET], self.secrets.values.get(PREVIOUS), secret="s", key="key"
        )

    def rotate(self) -> None:
        """Put another wrapping key into the Secret, the one of before beside it."""
        self.secrets.values = {SECRET: new_wrapping_key(), PREVIOUS: self.secrets.values[SECRET]}

    def hand_over(self) -> None:
        """Give the API what the Secret has now."""
        values = {slot_name(reference, NOWHERE): value for reference, value in self.secrets.values.items()}
        self.store.stored["probe"] = AgentSecret(
            slug="probe", owner=Owner("agents", "probe", "uid-probe"), values=values
        )

    async def look(self) -> float | None:
        """Look, then make the passes that were asked for; return after how many seconds to look again."""
        after_s = await self.upkeep._check(KEY)
        while self.asked:
            self.asked.clear()
            self.write()
        return after_s

    def write(self, status: Json | None = None) -> None:
        """Write what a pass would write."""
        document = self.table.get(KEY)
        assert document is not None
        told = self.upkeep.update_status(KEY, document, status or {"conditions": [{"type": "Ready", "status": "True"}]})
        self.table.put_status(KEY, "uid-probe", told, "")

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
    def told(self) -> list[tuple[str, str]]:
        return [(event.type, event.reason) for event in self.cluster.events]


async def test_keys_that_are_there_are_counted_and_told_as_available() -> None:
    bench = Bench()
    await bench.fill("ada", "bob")

    after_s = await bench.look()

    assert bench.condition == ("False", "KeysAvailable")
    assert bench.status["zones"] == {"shards": 1, "keys": 2, "wrappingKey": bench.wrapping.fingerprint}
    assert after_s is not None
    assert after_s >= CHECK_PERIOD_S * 0.8
    assert bench.told == []


async def test_an_object_without_zones_is_not_looked_after() -> None:
    bench = Bench()
    bench.put(zones=None)

    assert await bench.look() is None
    bench.write()

    assert (bench.secrets.reads, bench.shards.calls.total()) == (0, 0)
    assert (bench.condition, "zones" in bench.status) == (("", ""), False)


async def test_an_object_that_gives_up_its_zones_says_nothing_of_keys_any_more() -> None:
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
async def test_a_wrapping_key_that_is_none_is_told_without_its_value(
    values: dict[tuple[str, str, str], str], reason: str
) -> None:
    bench = Bench()
    bench.secrets.values = values

    assert await bench.look() == RETRY_PERIOD_S

    assert bench.condition == ("True", reason)
    assert bench.told == [("Warning", reason)]
    assert "agents/zones" in bench.message
    assert not any(value in bench.message for value in values.values())


async def test_what_was_told_once_is_no_news() -> None:
    bench = Bench()
    bench.secrets.values = {}

    for _ in range(3):
        await bench.look()
    bench.upkeep = bench.another()
    await bench.look()

    assert bench.told == [("Warning", "WrappingKeyMissing")]


async def test_once_the_wrapping_key_is_there_again_so_are_the_keys() -> None:
    bench = Bench()
    await bench.fill("ada")
    await bench.look()
    values, bench.secrets.values = bench.secrets.values, {}
    await bench.look()
    assert (bench.condition[1], bench.status["zones"]["keys"]) == ("WrappingKeyMissing", 1)
    bench.secrets.values = values

    await bench.look()

    assert bench.condition == ("False", "KeysAvailable")


async def test_an_installation_that_keeps_no_keys_says_who_can_change_that() -> None:
    bench = Bench(has_store=False)

    assert await bench.look() == RETRY_PERIOD_S
    assert bench.condition == ("True", "KeyStoreMissing")
    assert "AGENTMEMORY_ZONE_KEYS_NAMESPACE" in bench.message


async def test_a_store_that_is_away_is_told_and_comes_back() -> None:
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


async def test_a_shard_that_is_damaged_is_told_and_the_others_are_looked_after() -> None:
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


async def test_what_a_pass_counted_stands_beside_what_a_look_did_until_a_pass_says_otherwise() -> None:
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


async def test_who_no_longer_leads_says_nothing() -> None:
    bench = Bench()
    bench.shards.error = LeadershipLost("another leads")

    with pytest.raises(LeadershipLost):
        await bench.look()
    assert bench.status == {}


async def test_keys_are_not_counted_at_every_look() -> None:
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


async def test_another_wrapping_key_takes_over_and_the_one_of_before_may_go_once_nobody_uses_it() -> None:
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
    assert bench.told == [("Normal", "KeysRewrapped")]
    assert "'key.previous' can be removed from Secret zones" in bench.cluster.events[0].message
    del bench.secrets.values[PREVIOUS]  # type: ignore[attr-defined]
    await bench.look()
    assert bench.condition == ("False", "KeysAvailable")
    assert bench.told == [("Normal", "KeysRewrapped")]


async def test_a_key_that_a_replica_makes_under_the_wrapping_key_of_before_comes_along() -> None:
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


async def test_an_operator_that_starts_amid_a_rotation_waits_again_before_it_lets_the_key_of_before_go() -> None:
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
    assert bench.told == [("Normal", "KeysRewrapped")]


async def test_nothing_is_wrapped_with_a_key_that_the_api_has_not() -> None:
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


async def test_keys_under_a_wrapping_key_that_is_gone_are_told_with_the_way_out() -> None:
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
async def test_an_object_that_is_deleted_or_not_valid_says_what_it_said(after: Json) -> None:
    bench = Bench()
    await bench.look()
    before = bench.status["zones"]
    bench.put(**after)

    assert await bench.upkeep._check(KEY) is None
    bench.write({"conditions": [{"type": "Ready", "status": "False"}]})

    assert (bench.condition, bench.status["zones"]) == (("False", "KeysAvailable"), before)


async def test_an_object_that_does_not_own_its_slug_has_no_keys() -> None:
    bench = Bench()
    older = memory_document("older", metadata={"creationTimestamp": "2025-01-01T00:00:00Z"}, agent="probe")
    bench.table.put(older)

    assert await bench.look() is None
    bench.write()
    assert bench.condition == ("", "")


async def test_an_object_that_was_made_again_is_looked_at_again() -> None:
    bench = Bench()
    await bench.look()
    bench.secrets.values = {}
    await bench.look()
    bench.table.remove(KEY)
    bench.put(metadata={"uid": "uid-other"})

    bench.write()

    assert bench.condition == ("", "")


@pytest.mark.parametrize("is_new", [False, True], ids=["an operator that saw them", "one that just started"])
async def test_shards_that_are_gone_are_told_until_they_are_back(is_new: bool) -> None:
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
    assert bench.told == [("Warning", "KeysLost")]
    bench.shards.texts, bench.shards.versions = kept

    await bench.look()

    assert (bench.condition, bench.status["zones"]["keys"]) == (("False", "KeysAvailable"), 2)


async def test_a_key_of_before_that_cannot_be_read_now_is_not_taken_for_one_that_is_gone() -> None:
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


async def test_agents_whose_keys_are_away_are_counted_by_the_reason() -> None:
    bench = Bench()
    (gauge,) = bench.upkeep.metrics
    await bench.look()
    assert [*collect_samples(gauge).values()] == [0] * len(TROUBLE_REASONS)
    bench.secrets.values = {}

    await bench.look()

    assert collect_samples(gauge)['agentmemory_zone_keys_unavailable{reason="WrappingKeyMissing"}'] == 1
