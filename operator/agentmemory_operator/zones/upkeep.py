"""Looks after the keys of every object with zones: are they there, and under the wrapping key in force.

A look reads the wrapping key and asks the store. Where the Secret has another wrapping key than before, it brings the
data keys under that one, once the retrieval API has it too; where nothing changed, it counts them from time to time.
The passes write down what it finds. Nothing else is kept: a restart looks again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from prometheus_client.registry import Collector

from agentmemory_operator.connections.handover import HandedOverSecrets, Handover
from agentmemory_operator.errors import LeadershipLost, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event, Secrets
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.runtime.cache import AGENT_MEMORY, Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.metrics import Labels, LiveGauge
from agentmemory_operator.runtime.queue import WorkQueue, jittered
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of
from agentmemory_operator.spec.times import render_second
from agentmemory_operator.spec.zones import ZoneSettings
from agentmemory_operator.zones.rewrap import Census, rewrap
from agentmemory_operator.zones.rules.entries import FIRST_SHARD, Ring
from agentmemory_operator.zones.rules.health import (
    FIELD,
    KEYS_UNAVAILABLE,
    TROUBLES,
    KeyHealth,
    most_shards,
    own_part,
    with_health,
    without_health,
)
from agentmemory_operator.zones.wrapping import WrappingKeys, read_wrapping_keys

log = logging.getLogger(__name__)

AGENTS_AT_ONCE = 4
LOOK_S, TROUBLE_S, SOON_S = 300.0, 30.0, 1.0

COUNTED_MS = 3_600_000
"""How old a count may be: of an agent with very many users it reads thousands of shards."""

SETTLED_S = 300.0
"""After so long with a wrapping key nobody makes a data key under the one before.

A writer relies on what it read for a minute, and has several attempts of a few seconds each.
"""

MOST_NAMED = 5
"""Shards that a message names."""

NO_STORE = (
    "zone keys are not enabled: memories with a zone are rejected. The administrator sets zones.enabled in the"
    " chart, or AGENTMEMORY_ZONE_KEYS_NAMESPACE for the operator and the API"
)


def trouble_gauge(count: Callable[[], dict[Labels, float]]) -> Collector:
    """How many agents lack keys, by the reason; `count` tells them."""
    return LiveGauge(
        "agentmemory_zone_keys_unavailable", "Agents with condition KeysUnavailable=True.", ("reason",), count
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of the keys of one object.

    Attributes:
        uid: the object's.
        fingerprints: of the wrapping keys that the last look found, as the API has them.
        since_ms: when it first found these.
        asked: fingerprints for which a pass was asked to hand the keys over.
        census: of the last walk under these; None before the first.
        counted_ms: when that began.
        health: as it is told; None where there is nothing to tell yet.
    """

    uid: str
    fingerprints: tuple[str, ...] = ()
    since_ms: int = 0
    asked: tuple[str, ...] = ()
    census: Census | None = None
    counted_ms: int = 0
    health: KeyHealth | None = None

    def is_settled(self, settled_ms: float) -> bool:
        """Whether the last walk came when nobody made keys under another wrapping key any more."""
        return len(self.fingerprints) == 1 or self.counted_ms - self.since_ms >= settled_ms

    def due_ms(self, settled_ms: float) -> float:
        """When the next walk is due."""
        if self.census is None:
            return 0
        if self.health and self.health.is_trouble:
            return self.counted_ms + LOOK_S * 1000
        return self.counted_ms + COUNTED_MS if self.is_settled(settled_ms) else self.since_ms + settled_ms


@dataclass(slots=True)
class KeyUpkeep:
    """Looks after the keys of all objects, few objects at a time.

    Attributes:
        secrets: where wrapping keys are read.
        shards: where data keys are kept; None where the installation keeps none.
        handover: gives the retrieval API the wrapping keys; None where it reads them itself.
        request: asks for a pass over an object.
        settled_s: see SETTLED_S.
    """

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    secrets: Secrets
    shards: KeyShards | None
    handover: Handover | None
    settled_s: float = SETTLED_S
    queue: WorkQueue[Key] = field(init=False)
    _known: dict[Key, _Known] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self._look, place_of=self.table.place_of, share=AGENTS_AT_ONCE)

    @property
    def metrics(self) -> list[Collector]:
        """Everything that is counted."""
        return [trouble_gauge(self._troubles)]

    def _troubles(self) -> dict[Labels, float]:
        found = [known.health.reason for known in self._known.values() if known.health]
        return {(str(reason),): float(found.count(reason)) for reason in TROUBLES}

    def note(self, key: Key, document: Json, status: Json) -> Json:
        """An object's new status with how its keys are, which are looked after from then on.

        Args:
            document: the object as it came, with the status before.
            status: what the pass has to say.
        """
        old = document.get("status") or {}
        try:
            memory = self.table.parse(document)
        except SpecInvalid:
            return self._told(None, old, status, 0)
        if memory.metadata.deletion_timestamp:
            return self._told(None, old, status, 0)
        if memory.spec.zones is None or self.table.owner_of(memory.slug) != key:
            self._known.pop(key, None)
            return without_health(status)
        self.queue.request(key, after_s=SOON_S)
        return self._told(self._known_of(key, memory).health, old, status, memory.metadata.generation)

    def _told(self, health: KeyHealth | None, old: Json, status: Json, generation: int) -> Json:
        now = render_second(self.clock.now_ms() / 1000)
        return with_health(status, health, old=old, generation=generation, now=now)

    def _known_of(self, key: Key, memory: AgentMemory) -> _Known:
        known = self._known.get(key)
        return known if known and known.uid == memory.metadata.uid else _Known(uid=memory.metadata.uid)

    async def _look(self, key: Key) -> float | None:
        """Look at the keys of an object; return after how many seconds to look again.

        Raises:
            TransientError: nobody can tell how they are.
        """
        memory = owned_memory(self.table, key)
        zones = effective_zones(memory) if memory else None
        if memory is None or zones is None:
            self._known.pop(key, None)
            return None
        before = self._known_of(key, memory)
        known = self._known[key] = await self._examined(before, memory, zones)
        await self._tell(key, memory, before.health, known.health)
        if known.health is None or known.health.is_trouble:
            return TROUBLE_S
        until_s = (known.due_ms(self.settled_s * 1000) - self.clock.now_ms()) / 1000
        return max(SOON_S, min(jittered(LOOK_S), until_s))

    async def _tell(self, key: Key, memory: AgentMemory, before: KeyHealth | None, now: KeyHealth | None) -> None:
        """Have the status say what is news, and post what people are to hear of."""
        document = self.table.get(key)
        status = (document or {}).get("status") or {}
        if document is None or now is None:
            return
        is_told = condition_of(status, KEYS_UNAVAILABLE).get("reason") == now.reason
        if now.is_trouble and not is_told and (before is None or before.reason != now.reason):
            event = Event("Warning", now.reason, now.message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        last, found = (status.get(FIELD) or {}).get("wrappingKey"), now.wrapping_key
        if last and found not in (None, last, before.wrapping_key if before else None):
            event = Event("Normal", "KeysRewrapped", now.message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        if own_part(self._told(now, status, status, memory.metadata.generation)) != own_part(status):
            self.request(key)

    async def _examined(self, before: _Known, memory: AgentMemory, zones: ZoneSettings) -> _Known:
        """What is known after a look."""
        if self.shards is None:
            return _troubled(before, Reason.KEY_STORE_MISSING, NO_STORE)
        try:
            wrapping = await read_wrapping_keys(self.secrets, memory.metadata.namespace, zones)
        except SpecInvalid as exc:
            return _troubled(before, exc.reason, str(exc))
        if not await self._is_handed_over(memory, zones, wrapping):
            if before.asked != wrapping.fingerprints:
                self.request(key_of_memory(memory))
            return replace(before, asked=wrapping.fingerprints)
        known = before
        if before.fingerprints != wrapping.fingerprints:
            known = replace(before, fingerprints=wrapping.fingerprints, since_ms=self.clock.now_ms(), census=None)
        try:
            return await self._walked(self.shards, known, memory, zones, wrapping)
        except LeadershipLost:
            raise
        except TransientError as exc:
            return _troubled(known, Reason.KEY_STORE_UNAVAILABLE, f"the data key store is unavailable: {exc}")

    async def _is_handed_over(self, memory: AgentMemory, zones: ZoneSettings, wrapping: WrappingKeys) -> bool:
        """Whether the retrieval API has these keys: what is under a key that it has not, it cannot read."""
        if self.handover is None:
            return True
        try:
            given = HandedOverSecrets(self.handover.store, memory.slug)
            handed = await read_wrapping_keys(given, memory.metadata.namespace, zones, are_handed_over=True)
        except LeadershipLost:
            raise
        except (SpecInvalid, TransientError):
            return False
        return handed == wrapping

    async def _walked(
        self, shards: KeyShards, known: _Known, memory: AgentMemory, zones: ZoneSettings, wrapping: WrappingKeys
    ) -> _Known:
        """Walk through the shards where that is due, or there are any, or none, all at once.

        Raises:
            TransientError: the store is away.
        """
        ring, now_ms = Ring(memory.metadata.namespace, memory.slug), self.clock.now_ms()
        settled_ms = self.settled_s * 1000
        has_any = bool(await shards.version(ring, FIRST_SHARD))
        census = known.census
        if census is None or now_ms >= known.due_ms(settled_ms) or has_any != bool(census.shards):
            census = await rewrap(shards, ring, wrapping)
            known = replace(known, census=census, counted_ms=now_ms)
            if census.rewrapped:
                fingerprint = wrapping.fingerprint
                log.info("agent %s: %d data keys now use wrapping key %s", ring, census.rewrapped, fingerprint)
        health = _lost(census, memory) or _unreadable(census)
        return replace(known, health=health or _available(known, zones, is_settled=known.is_settled(settled_ms)))


def _lost(census: Census, memory: AgentMemory) -> KeyHealth | None:
    """What is told where there were more shards than there are, None where there were not."""
    most = most_shards(memory.status)
    if census.shards >= most:
        return None
    names = ", ".join(sorted(census.missing)[:MOST_NAMED])
    named = f" (among them {names})" if names else ""
    message = (
        f"{most - census.shards} of {most} data key shards are missing{named}: restore them from a backup"
        " (docs/zones.md); memories sealed with their keys cannot be read until then"
    )
    return KeyHealth(Reason.KEYS_LOST, message, census.shards, census.keys)


def _unreadable(census: Census) -> KeyHealth | None:
    """What is told where keys cannot be opened, or shards cannot be read; None where all can."""
    found = (
        f"{census.damaged} of {census.shards} data key shards cannot be read" if census.damaged else "",
        f"{census.unreadable} of {census.keys} data keys cannot be opened" if census.unreadable else "",
    )
    if not any(found):
        return None
    message = f"{' and '.join(filter(None, found))}; first error: {census.trouble}"
    return KeyHealth(Reason.KEYS_UNREADABLE, message, census.shards, census.keys)


def _available(known: _Known, zones: ZoneSettings, *, is_settled: bool) -> KeyHealth:
    """What is told where every key is there."""
    census, fingerprint = known.census or Census(), known.fingerprints[0]
    secret, previous = zones.secret_name, zones.previous_key
    if len(known.fingerprints) == 1:
        message = f"all data keys use wrapping key {fingerprint}"
    elif is_settled:
        message = f"all data keys use wrapping key {fingerprint}: key {previous!r} can be removed from Secret {secret}"
    else:
        message = (
            f"data keys are being rewrapped with wrapping key {fingerprint}: keep key {previous!r} in Secret "
            f"{secret} until status.zones.wrappingKey names it"
        )
    in_use = fingerprint if is_settled else None
    return KeyHealth(Reason.KEYS_AVAILABLE, message, census.shards, census.keys, in_use)


def _troubled(known: _Known, reason: str, message: str) -> _Known:
    """What is known where something is wrong; what was counted stays."""
    counted = known.health or KeyHealth(reason, message)
    return replace(known, health=replace(counted, reason=reason, message=message))
