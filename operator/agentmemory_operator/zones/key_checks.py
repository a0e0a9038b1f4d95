"""Check the keys of every object with zones: whether they exist, and whether they use the current wrapping key.

1. Read the wrapping keys from the Secret of the object.
2. Wait until the retrieval API has the same keys, because it cannot decrypt a data key that another key encrypts.
3. If the wrapping key changed, encrypt all data keys with it (`zones/rewrap.py`). Otherwise count them, usually once an
   hour.
4. If the result is not in the object's status yet, request a reconcile pass, which writes it there.

The results are kept in memory only, so a restarted operator checks again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from prometheus_client.registry import Collector

from agentmemory_operator.connections.agent_secrets import AgentSecretReader, AgentSecrets
from agentmemory_operator.errors import LeadershipLost, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import Cluster, Event, Secrets
from agentmemory_operator.runtime.metrics import Labels, LiveGauge
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.work_queue import WorkQueue, jittered
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition
from agentmemory_operator.spec.times import render_second
from agentmemory_operator.spec.zones import ZoneSettings
from agentmemory_operator.zones.rewrap import Census, rewrap
from agentmemory_operator.zones.rules.entries import FIRST_SHARD, Ring
from agentmemory_operator.zones.rules.health import (
    FIELD,
    KEYS_UNAVAILABLE,
    TROUBLE_REASONS,
    KeyHealth,
    key_fields,
    recorded_shards,
    with_health,
    without_health,
)
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, read_wrapping_keys

log = logging.getLogger(__name__)

MAX_CONCURRENT_AGENTS = 4
CHECK_PERIOD_S, RETRY_PERIOD_S, MIN_CHECK_DELAY_S = 300.0, 30.0, 1.0

MAX_CENSUS_AGE_MS = 3_600_000
"""Maximum age of a count in milliseconds. For an agent with very many users, a count reads thousands of shards."""

SETTLED_S = 300.0
"""Seconds after a rotation until no process creates data keys under the previous wrapping key any more.

A writer uses cached wrapping keys for a minute, and makes several attempts of a few seconds each.
"""

MAX_LISTED_SHARDS = 5
"""Maximum number of shards that a message names."""

NO_STORE = (
    "zone keys are not enabled: memories with a zone are rejected. The administrator sets zones.enabled in the"
    " chart, or AGENTMEMORY_ZONE_KEYS_NAMESPACE for the operator and the API"
)


def trouble_gauge(count: Callable[[], dict[Labels, float]]) -> Collector:
    """Build the gauge of agents with unavailable keys, by reason. `count` returns its values."""
    return LiveGauge(
        "agentmemory_zone_keys_unavailable", "Agents with condition KeysUnavailable=True.", ("reason",), count
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyState:
    """State of the keys of one object.

    Attributes:
        fingerprints: Fingerprints of the wrapping keys that the last check found, in the Secret and in the API.
        since_ms: Time at which a check first found these fingerprints, Unix milliseconds.
        requested: Fingerprints for which a pass was requested to copy the keys to the API.
        census: Result of the last walk under these keys; None before the first.
        counted_ms: Start of that walk, Unix milliseconds.
        health: Result of the last check; None before the first.
    """

    uid: str
    fingerprints: tuple[str, ...] = ()
    since_ms: int = 0
    requested: tuple[str, ...] = ()
    census: Census | None = None
    counted_ms: int = 0
    health: KeyHealth | None = None

    def is_settled(self, settled_ms: float) -> bool:
        """Return whether the last walk cannot have missed a key that uses the previous wrapping key."""
        return len(self.fingerprints) == 1 or self.counted_ms - self.since_ms >= settled_ms

    def due_ms(self, settled_ms: float) -> float:
        """Return the time of the next walk in Unix milliseconds; 0 if there was none under these wrapping keys."""
        if self.census is None:
            return 0
        if self.health and self.health.is_trouble:
            return self.counted_ms + CHECK_PERIOD_S * 1000
        return self.counted_ms + MAX_CENSUS_AGE_MS if self.is_settled(settled_ms) else self.since_ms + settled_ms


@dataclass(slots=True)
class KeyChecks:
    """Checks the keys of all objects with zones, at most four objects of a namespace at a time.

    Attributes:
        secrets: Reads the Secrets with wrapping keys.
        shards: Store of data keys; None if the installation has none.
        handover: Copies wrapping keys to the retrieval API; None if the API reads the Secrets itself.
        request: Requests a reconcile pass over an object.
        settled_s: Seconds after a rotation for which other processes may still use the previous wrapping key.
    """

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    secrets: Secrets
    shards: KeyShards | None
    handover: AgentSecrets | None
    settled_s: float = SETTLED_S
    queue: WorkQueue[Key] = field(init=False)
    _known: dict[Key, _KeyState] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self._check, tenant_lane_of=self.table.tenant_lane_of, share=MAX_CONCURRENT_AGENTS)

    @property
    def metrics(self) -> list[Collector]:
        """Collectors to register: the gauge of agents with unavailable keys."""
        return [trouble_gauge(self._count_troubles)]

    def _count_troubles(self) -> dict[Labels, float]:
        reasons = [state.health.reason for state in self._known.values() if state.health]
        return {(str(reason),): float(reasons.count(reason)) for reason in TROUBLE_REASONS}

    def update_status(self, key: Key, document: Json, status: Json) -> Json:
        """Return an object's new status with the state of its keys, and schedule a check of its keys.

        Without zones, or if another object owns the slug, the status contains no such state and no check follows. An
        invalid or deleted object keeps its old state.

        Args:
            document: The object as received, with its old status.
            status: New status that the reconcile pass has built so far.
        """
        old = document.get("status") or {}
        try:
            memory = self.table.parse(document)
        except SpecInvalid:
            return self._with_health(None, old, status, 0)
        if memory.metadata.deletion_timestamp:
            return self._with_health(None, old, status, 0)
        if memory.spec.zones is None or self.table.find_owner(memory.slug) != key:
            self._known.pop(key, None)
            return without_health(status)
        self.queue.request(key, after_s=MIN_CHECK_DELAY_S)
        return self._with_health(self._state_of(key, memory).health, old, status, memory.metadata.generation)

    def _with_health(self, health: KeyHealth | None, old_status: Json, status: Json, generation: int) -> Json:
        now = render_second(self.clock.now_ms() / 1000)
        return with_health(status, health, old=old_status, generation=generation, now=now)

    def _state_of(self, key: Key, memory: AgentMemory) -> _KeyState:
        state = self._known.get(key)
        return state if state and state.uid == memory.metadata.uid else _KeyState(uid=memory.metadata.uid)

    async def _check(self, key: Key) -> float | None:
        """Check the keys of an object; return the seconds until the next check.

        The result is None, which ends the checks, if the object has no zones, is absent, deleted or invalid, or owns no
        slug.

        Raises:
            TransientError: If the Secret with the wrapping keys cannot be read now, or leadership is lost.
        """
        memory = owned_memory(self.table, key)
        zones = effective_zones(memory) if memory else None
        if memory is None or zones is None:
            self._known.pop(key, None)
            return None
        old_state = self._state_of(key, memory)
        state = self._known[key] = await self._examine(old_state, memory, zones)
        await self._publish(key, memory, old_state.health, state.health)
        if state.health is None or state.health.is_trouble:
            return RETRY_PERIOD_S
        due_in_s = (state.due_ms(self.settled_s * 1000) - self.clock.now_ms()) / 1000
        return max(MIN_CHECK_DELAY_S, min(jittered(CHECK_PERIOD_S), due_in_s))

    async def _publish(self, key: Key, memory: AgentMemory, old: KeyHealth | None, health: KeyHealth | None) -> None:
        """Post events for a changed result, and request a pass if the status differs from it."""
        document = self.table.get(key)
        status = (document or {}).get("status") or {}
        if document is None or health is None:
            return
        is_in_status = find_condition(status, KEYS_UNAVAILABLE).get("reason") == health.reason
        if health.is_trouble and not is_in_status and (old is None or old.reason != health.reason):
            event = Event("Warning", health.reason, health.message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        old_fingerprint, fingerprint = (status.get(FIELD) or {}).get("wrappingKey"), health.wrapping_key
        if old_fingerprint and fingerprint not in (None, old_fingerprint, old.wrapping_key if old else None):
            event = Event("Normal", "KeysRewrapped", health.message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        if key_fields(self._with_health(health, status, status, memory.metadata.generation)) != key_fields(status):
            self.request(key)

    async def _examine(self, old_state: _KeyState, memory: AgentMemory, zones: ZoneSettings) -> _KeyState:
        """Return the new state of an object's keys. Faults of keys, Secret and key store become its health.

        While the API lacks the wrapping keys, the old health stays, and one pass is requested to copy them.

        Raises:
            TransientError: If the Secret with the wrapping keys cannot be read now, or leadership is lost.
        """
        if self.shards is None:
            return _with_trouble(old_state, Reason.KEY_STORE_MISSING, NO_STORE)
        try:
            wrapping = await read_wrapping_keys(self.secrets, memory.metadata.namespace, zones)
        except SpecInvalid as exc:
            return _with_trouble(old_state, exc.reason, str(exc))
        if not await self._has_api_keys(memory, zones, wrapping):
            if old_state.requested != wrapping.fingerprints:
                self.request(key_of_memory(memory))
            return replace(old_state, requested=wrapping.fingerprints)
        state = old_state
        if old_state.fingerprints != wrapping.fingerprints:
            state = replace(old_state, fingerprints=wrapping.fingerprints, since_ms=self.clock.now_ms(), census=None)
        try:
            return await self._count_keys(self.shards, state, memory, zones, wrapping)
        except LeadershipLost:
            raise
        except TransientError as exc:
            return _with_trouble(state, Reason.KEY_STORE_UNAVAILABLE, f"the data key store is unavailable: {exc}")

    async def _has_api_keys(self, memory: AgentMemory, zones: ZoneSettings, wrapping: WrappingKeys) -> bool:
        """Return whether the retrieval API has these wrapping keys.

        Without these keys the API cannot decrypt the data keys that they encrypt.
        """
        if self.handover is None:
            return True
        try:
            api_secrets = AgentSecretReader(self.handover.store, memory.slug)
            api_keys = await read_wrapping_keys(api_secrets, memory.metadata.namespace, zones, are_shared=True)
        except LeadershipLost:
            raise
        except (SpecInvalid, TransientError):
            return False
        return api_keys == wrapping

    async def _count_keys(
        self, shards: KeyShards, state: _KeyState, memory: AgentMemory, zones: ZoneSettings, wrapping: WrappingKeys
    ) -> _KeyState:
        """Walk through the shards if a walk is due, or if the first shard appeared or disappeared.

        Raises:
            TransientError: If the key store is unavailable.
        """
        ring, now_ms = Ring(memory.metadata.namespace, memory.slug), self.clock.now_ms()
        settled_ms = self.settled_s * 1000
        has_first_shard = bool(await shards.version(ring, FIRST_SHARD))
        census = state.census
        if census is None or now_ms >= state.due_ms(settled_ms) or has_first_shard != bool(census.shards):
            census = await rewrap(shards, ring, wrapping)
            state = replace(state, census=census, counted_ms=now_ms)
            if census.rewrapped:
                fingerprint = wrapping.fingerprint
                log.info("agent %s: %d data keys now use wrapping key %s", ring, census.rewrapped, fingerprint)
        health = _check_lost(census, memory) or _check_unreadable(census)
        return replace(state, health=health or _available(state, zones, is_settled=state.is_settled(settled_ms)))


def _check_lost(census: Census, memory: AgentMemory) -> KeyHealth | None:
    """Return the result for lost shards, or None if there are at least as many as recorded before."""
    recorded = recorded_shards(memory.status)
    if census.shards >= recorded:
        return None
    names = ", ".join(sorted(census.missing)[:MAX_LISTED_SHARDS])
    examples = f" (among them {names})" if names else ""
    message = (
        f"{recorded - census.shards} of {recorded} data key shards are missing{examples}: restore them from a backup"
        " (docs/zones.md); memories sealed with their keys cannot be read until then"
    )
    return KeyHealth(Reason.KEYS_LOST, message, census.shards, census.keys)


def _check_unreadable(census: Census) -> KeyHealth | None:
    """Return the result for keys that cannot be decrypted or shards that cannot be parsed; None if there are none."""
    problems = (
        f"{census.damaged} of {census.shards} data key shards cannot be read" if census.damaged else "",
        f"{census.unreadable} of {census.keys} data keys cannot be opened" if census.unreadable else "",
    )
    if not any(problems):
        return None
    message = f"{' and '.join(filter(None, problems))}; first error: {census.error_message}"
    return KeyHealth(Reason.KEYS_UNREADABLE, message, census.shards, census.keys)


def _available(state: _KeyState, zones: ZoneSettings, *, is_settled: bool) -> KeyHealth:
    """Return the result for complete and readable keys."""
    census, fingerprint = state.census or Census(), state.fingerprints[0]
    secret, previous = zones.secret_name, zones.previous_key
    if len(state.fingerprints) == 1:
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


def _with_trouble(state: _KeyState, reason: str, message: str) -> _KeyState:
    """Return the state with an error as its result. The counts of the last result stay."""
    last_result = state.health or KeyHealth(reason, message)
    return replace(state, health=replace(last_result, reason=reason, message=message))
