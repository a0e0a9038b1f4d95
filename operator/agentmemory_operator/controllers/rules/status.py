"""Build the status from the result of a pass. Pure: the time is an argument."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentmemory_operator.collections.rules.capacity import CONDITION as NEAR_CAPACITY
from agentmemory_operator.collections.rules.capacity import Load, build_condition, capacity_status, level_of, read_level
from agentmemory_operator.collections.rules.collection import GREEN, RED, Collection, Observation, effective_limits
from agentmemory_operator.collections.rules.drift import Difference
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.outgrown import build_outgrown_condition
from agentmemory_operator.collections.rules.replicas import join_limited
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities, derive_capabilities
from agentmemory_operator.controllers.rules.plan_text import plan_status, quantization_type
from agentmemory_operator.spec.caller_rights import Subject, Verb
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.model_weights import weighted_for_model
from agentmemory_operator.spec.effective.policies import lifecycle_fault
from agentmemory_operator.spec.effective.ranking_figures import ranking_status
from agentmemory_operator.spec.effective.scoring_model import FIELD as SCORING_EXPRESSION
from agentmemory_operator.spec.effective.settings import AgentSettings, Ranking
from agentmemory_operator.spec.expression.variables import UNLISTED_RECENCY
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, merge_conditions
from agentmemory_operator.spec.kinds.spec_zones import ZonesStatus
from agentmemory_operator.spec.kinds.status_agent_memory import (
    MAX_DRIFT,
    AccessStatus,
    AgentMemoryCondition,
    AgentMemoryStatus,
    CollectionStatus,
    DriftStatus,
    EffectiveStatus,
    EmbeddingStatus,
    HnswStatus,
    KeywordStatus,
    OptimizersStatus,
    QuantizationStatus,
    ReplicasStatus,
    ScoringStatus,
    ShardingStatus,
    StrictModeStatus,
    VectorsStatus,
)
from agentmemory_operator.spec.kinds.status_connection import (
    CapacityStatus,
    QdrantConnectionCondition,
    QdrantConnectionStatus,
)
from agentmemory_operator.spec.presets.table import Quantization
from agentmemory_operator.spec.times import render_time


def unlisted_states(unlisted: Mapping[str, int]) -> Iterator[ConditionState]:
    """Yield the condition TypesListed (False) if there are memories of types that the object does not list.

    Args:
        unlisted: Number of these memories by type.
    """
    if unlisted:
        counts = ", ".join(f"{count} of type {name}" for name, count in unlisted.items())
        message = (
            f"some memories have types that are not in spec.types or the preset: {counts}. They are found with a"
            f" recency of {UNLISTED_RECENCY} and without type rules; new ones are rejected: list the type again"
            " or erase them"
        )
        yield ConditionState("TypesListed", False, Reason.TYPE_REMOVED, message)


Json = dict[str, Any]

_HANDLED, MAX_HANDLED_CHARS = "lastHandledReconcileAt", 128

# Whether the server responded, by the reason of the error. Other reasons mean that no call was made: the condition
# `Reachable` is then Unknown.
_REACHABLE: dict[str, bool] = {
    Reason.QDRANT_UNAVAILABLE: False,
    Reason.TLS_FAILED: False,
    Reason.QDRANT_REJECTED: True,
    Reason.QDRANT_TOO_OLD: True,
}


def converged_status(settings: AgentSettings, done: PassOutcome, *, old: Mapping[str, Any], now: str) -> Json:
    """Build the status of an object after a pass that found or created a usable collection.

    Args:
        done: Result of the pass: the observed collection, the plan with its refusal, and the drift.
        old: Previous status. It supplies the times of unchanged conditions and drift, and of the last wake-up of the
            optimizers.
        now: Current time, RFC 3339 UTC.
    """
    conditions = merge_conditions(
        old.get("conditions") or [], _states(settings, done, old), generation=settings.generation, now=now
    )
    status = AgentMemoryStatus(
        observed_generation=settings.generation,
        agent=settings.slug,
        conditions=tuple(AgentMemoryCondition.model_validate(condition) for condition in conditions),
        collection=_collection(settings.alias, done, woken_at=_woken_at(done, old, now)),
        effective=_effective(settings, done.observed.collection),
        scoring=ScoringStatus(generation=settings.scoring_generation),
        plan=plan_status(done.plan, done.refusal),
        drift=_drift(done.drift, old, now),
        drift_count=len(done.drift),
        zones=None if done.memories_to_reseal is None else ZonesStatus(to_reseal=done.memories_to_reseal),
    )
    return _dump(status)


def access_status(settings: AgentSettings, credential_kind: str | None) -> Json:
    """Build `status.access`: numbers of readers and writers, and the API's access to Qdrant.

    Args:
        credential_kind: Kind of credential that the retrieval API has for Qdrant: `Token` or `Key`. None if it needs
            none.
    """
    return _dump(AccessStatus(**_counts(settings.subjects), qdrant=credential_kind))


def with_request_handled(status: Json, requested_at: str | None) -> Json:
    """Return the status with the handled reconcile request, cut to 128 characters.

    Args:
        requested_at: Value of the annotation as the pass read it. None removes the field.
    """
    remaining = {name: value for name, value in status.items() if name != _HANDLED}
    return remaining if requested_at is None else remaining | {_HANDLED: requested_at[:MAX_HANDLED_CHARS]}


def with_access_counted(status: Json, subjects: Sequence[Subject]) -> Json:
    """Return an AgentMemory's status with updated numbers of readers and writers.

    A status without `access` is unchanged.
    """
    access = status.get("access")
    return status | {"access": access | _counts(subjects)} if isinstance(access, dict) else status


def _counts(subjects: Sequence[Subject]) -> dict[str, int]:
    verbs = {"readers": Verb.READ, "writers": Verb.WRITE}
    return {name: sum(verb in subject.verbs for subject in subjects) for name, verb in verbs.items()}


def failed_status(
    reason: str, message: str, *, is_stalled: bool, old: Mapping[str, Any], generation: int, now: str
) -> Json:
    """Build the status of an object that is not Ready.

    Its conditions are Ready, and Stalled or Reconciling. Other fields of the old status stay, except `foreignOwner`.

    Args:
        reason: Condition reason.
        message: Error and remedy.
        is_stalled: True if only a user can fix it; False if the operator retries.
        old: Previous status.
        generation: Generation of the object.
        now: RFC 3339 UTC.
    """
    states = [ConditionState("Ready", False, reason, message)]
    states.append(ConditionState("Stalled" if is_stalled else "Reconciling", True, reason, message))
    conditions = merge_conditions(old.get("conditions") or [], states, generation=generation, now=now)
    remaining = {name: value for name, value in old.items() if name != "foreignOwner"}
    return remaining | {"conditions": conditions, "observedGeneration": generation}


def suspended_status(*, old: Mapping[str, Any], generation: int, now: str) -> Json:
    """Build the status of a suspended object: Ready and InSync stay, Suspended replaces all other conditions.

    If neither Ready nor InSync was reported before, Ready is Unknown.

    Args:
        old: Previous status.
        generation: Generation of the object.
        now: RFC 3339 UTC.
    """
    old_conditions = old.get("conditions") or []
    message = "spec.suspend is true: the collection is not changed; set it to false to resume"
    states = [ConditionState("Suspended", True, Reason.SUSPENDED, message)]
    observed = [condition for condition in old_conditions if condition["type"] in ("Ready", "InSync")]
    if not observed:
        states.insert(0, ConditionState("Ready", None, Reason.SUSPENDED, "not reconciled yet"))
    updated = merge_conditions(old_conditions, states, generation=generation, now=now)
    return dict(old) | {"conditions": [*observed, *updated], "observedGeneration": generation}


def failed_connection_status(
    reason: str, message: str, *, is_stalled: bool, old: Mapping[str, Any], generation: int, now: str
) -> Json:
    """Build `failed_status` of an unusable connection, with the condition Reachable: Unknown if no call was made."""
    status = failed_status(reason, message, is_stalled=is_stalled, old=old, generation=generation, now=now)
    states = [ConditionState("Reachable", _REACHABLE.get(reason), reason, message)]
    conditions = merge_conditions(old.get("conditions") or [], states, generation=generation, now=now)
    return status | {"conditions": [*status["conditions"], *conditions]}


def connection_status(
    server: ServerCapabilities,
    loads: Sequence[Load] | None = None,
    *,
    old: Mapping[str, Any],
    generation: int,
    now: str,
) -> Json:
    """Build the status of a connection with a responding server of a supported version.

    Args:
        server: Version and capabilities of the server.
        loads: Usage of the server's resources. None if it was not read: then the status contains no capacity.
        old: Previous status.
        generation: Generation of the object.
        now: RFC 3339 UTC.
    """
    message = f"Qdrant {server.version} answers"
    states = [
        ConditionState("Ready", True, Reason.SERVING, message),
        ConditionState("Reachable", True, Reason.ANSWERS, message),
    ]
    capacity = None
    if loads is not None:
        capacity, near_capacity = _capacity(loads, old)
        states.append(near_capacity)
    conditions = merge_conditions(old.get("conditions") or [], states, generation=generation, now=now)
    status = QdrantConnectionStatus(
        observed_generation=generation,
        conditions=tuple(QdrantConnectionCondition.model_validate(condition) for condition in conditions),
        version=server.version,
        capabilities=derive_capabilities(server),
        peers=server.peers,
        capacity=capacity,
    )
    return _dump(status)


def _capacity(loads: Sequence[Load], old: Mapping[str, Any]) -> tuple[CapacityStatus | None, ConditionState]:
    """Build the capacity status (None without loads) and the condition.

    Both stay unchanged until a usage changes by 1 % of its limit, a limit changes, or the level changes.
    """
    old_level = read_level(find_condition(old, NEAR_CAPACITY))
    level = level_of(loads, old_level)
    old_capacity = old.get("capacity")
    reported = CapacityStatus.model_validate(old_capacity) if old_capacity and level is old_level else None
    capacity = capacity_status(loads, reported)
    return capacity, build_condition(level, capacity)


def _states(settings: AgentSettings, done: PassOutcome, old: Mapping[str, Any]) -> list[ConditionState]:
    states = list(_serving(done))
    fault = lifecycle_fault(settings.lifecycle)
    if settings.scoring_fault:
        states.append(ConditionState("Stalled", True, Reason.SCORING_REJECTED, _rejected(settings)))
    elif fault:
        message = f"{': '.join(fault)}; cleanup is off until this is fixed"
        states.append(ConditionState("Stalled", True, Reason.SCHEDULE_REJECTED, message))
    if state := build_outgrown_condition(done.observed, settings.expected_memories, old):
        states.append(state)
    return [*states, *unlisted_states(done.unlisted)]


def _rejected(settings: AgentSettings) -> str:
    last = settings.scoring_generation
    model = f"the last accepted scoring (generation {last})" if last else "the preset's model"
    return f"{SCORING_EXPRESSION}: {settings.scoring_fault}\n  Until this is fixed, search ranks by {model}"


def _serving(done: PassOutcome) -> Sequence[ConditionState]:
    refusal = done.refusal
    if refusal and done.observed.collection.marker is None:
        # Not Ready without a marker: the embedding of the vectors is unknown, so the API cannot serve the collection.
        ready = ConditionState("Ready", False, refusal.reason, refusal.message)
    else:
        ready = ConditionState("Ready", True, Reason.SERVING, f"{done.observed.physical} serves")
    return ready, _in_sync(done)


def _in_sync(done: PassOutcome) -> ConditionState:
    observed, refusal = done.observed, done.refusal
    if observed.state == RED:
        fault = observed.fault or "see its log"
        return ConditionState(
            "InSync", False, Reason.COLLECTION_RED, f"Qdrant cannot optimize {observed.physical}: {fault}"
        )
    if refusal:
        return ConditionState("InSync", False, refusal.reason, refusal.message)
    if done.drift:
        message = f"{'; '.join(map(str, done.drift))}; not corrected because of spec.driftPolicy: see docs/drift.md"
        return ConditionState("InSync", False, Reason.DRIFTED, message)
    if done.replication:
        return ConditionState("InSync", False, done.replication.reason, done.replication.message)
    if observed.is_busy:
        return ConditionState(
            "InSync", False, Reason.INDEXING, f"Qdrant is optimizing the collection ({observed.state})"
        )
    return ConditionState("InSync", True, Reason.CONVERGED, "the collection matches the spec")


def _drift(drift: Sequence[Difference], old: Mapping[str, Any], now: str) -> tuple[DriftStatus, ...] | None:
    """Build the list of the first `MAX_DRIFT` differences, each with the time since which it is unchanged.

    Returns None without differences.
    """
    since = {(entry["path"], entry.get("observed")): entry.get("since", now) for entry in old.get("drift") or []}
    entries = tuple(
        DriftStatus(path=d.path, desired=d.desired, observed=d.observed, since=since.get((d.path, d.observed), now))
        for d in drift[:MAX_DRIFT]
    )
    return entries or None


def _woken_at(done: PassOutcome, old: Mapping[str, Any], now: str) -> str | None:
    """Return when the optimizers were last triggered; None if never, or if the collection has been green since."""
    if done.is_woken:
        return now
    before: str | None = (old.get("collection") or {}).get("wokenAt")
    return None if done.observed.state == GREEN else before


def _collection(alias: str, done: PassOutcome, *, woken_at: str | None) -> CollectionStatus:
    observed = done.observed
    marker = observed.collection.marker
    return CollectionStatus(
        alias=alias,
        physical=observed.physical,
        memories=done.memories,
        points=observed.points,
        indexed=observed.indexed,
        state=observed.state,
        config_hash=marker.config_hash if marker else None,
        rebuilt_time=_rebuilt_time(observed),
        woken_at=woken_at,
        replicas=_replicas(observed),
    )


def _rebuilt_time(observed: Observation) -> str | None:
    record = observed.record
    if record is None or record.target != observed.physical or record.moved_ms is None:
        return None
    return render_time(record.moved_ms)


def _replicas(observed: Observation) -> ReplicasStatus | None:
    placement, factor = observed.placement, observed.collection.replication_factor
    if placement is None:
        return None
    return ReplicasStatus(
        peers=len(placement.peers),
        shards=len(placement.shards),
        wanted=len(placement.shards) * factor if factor else None,
        active=placement.active,
        inactive=join_limited(placement.inactive) or None,
        copying=join_limited([str(copy) for copy in placement.copying]) or None,
    )


def _effective(settings: AgentSettings, live: Collection) -> EffectiveStatus:
    marker = live.marker
    ranking = weighted_for_model(settings, marker.embedding.model if marker else None).ranking
    keyword = marker.keyword if marker else None
    return EffectiveStatus(
        preset=settings.preset,
        profile=settings.profile,
        preset_revision=marker.preset_revision if marker else None,
        embedding=_embedding(marker.embedding) if marker else None,
        hnsw=HnswStatus.model_validate(asdict(live.hnsw)),
        distance=live.distance,
        quantization=_quantization(live.quantization, ranking),
        sharding=ShardingStatus(shard_number=live.shard_number, replication_factor=live.replication_factor),
        strict_mode=StrictModeStatus.model_validate(effective_limits(live.strict_mode)),
        keyword=KeywordStatus(language=keyword.language, window=keyword.window) if keyword else None,
        vectors=VectorsStatus(datatype=live.datatype, memory=live.memory),
        optimizers=OptimizersStatus.model_validate(asdict(live.optimizers)),
        scoring=ranking_status(ranking, has_keyword=keyword is not None),
    )


def _embedding(source: EmbeddingSource) -> EmbeddingStatus:
    secret = f"{source.secret_name}/{source.secret_key}" if source.secret_name else None
    return EmbeddingStatus(provider=source.provider, model=source.model, dimensions=source.dimensions, secret=secret)


def _quantization(quantization: Quantization | None, ranking: Ranking) -> QuantizationStatus:
    if quantization is None:
        return QuantizationStatus(type="None")
    fields = {
        "type": quantization_type(quantization),
        "rescore": ranking.rescore,
        "oversampling": ranking.oversampling if ranking.rescore else None,
    }
    return QuantizationStatus.model_validate(asdict(quantization) | fields)


def _dump(status: AgentMemoryStatus | QdrantConnectionStatus | AccessStatus) -> Json:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
