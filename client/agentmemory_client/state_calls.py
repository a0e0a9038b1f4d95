"""The call for the state of an agent's object. See docs/http-api.md, "Read an agent's state"."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from agentmemory_client.exchange import Call, build_path
from agentmemory_client.values import Answer, read_value

Json = dict[str, Any]
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCondition(Answer):
    """A condition of an agent's object: `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift(Answer):
    """A change made directly in Qdrant that the operator has not reverted."""

    field: str | None = None
    desired: str | None = None
    observed: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange(Answer):
    """A change that is not applied yet.

    Attributes:
        change_class: InPlace, Reindex, Rebuild or Destroy.
        held: True if it waits, for example for an approval.
    """

    change: str | None = None
    change_class: str | None = None
    field: str | None = None
    current: str | None = None
    desired: str | None = None
    cost: str | None = None
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan(Answer):
    """Changes that are not applied yet.

    Attributes:
        reason: Why they wait, with the suggested fix.
        costs: Estimated costs in words; None if no new collection is needed.
    """

    digest: str | None = None
    reason: str | None = None
    costs: str | None = None
    changes: tuple[PlannedChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildProgress(Answer):
    """The current or last rebuild of the collection, or its rollback.

    Attributes:
        state: Running, Waiting, Paused, Held, Failed, Stopped or Done.
        copied, total: Points copied, and points to copy.
    """

    kind: str | None = None
    state: str | None = None
    summary: str = ""
    message: str | None = None
    copied: int | None = None
    total: int | None = None
    source: str | None = None
    target: str | None = None
    started_at: datetime | None = None
    moved_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity(Answer):
    """Used shares, 0..1, of the memory maps and open files of the agent's Qdrant server; None if unknown."""

    reason: str | None = None
    memory_maps: float | None = None
    open_files: float | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(Answer):
    """Progress of a snapshot or restore.

    Attributes:
        phase: Running, Succeeded or Failed.
        message: What it does or waits for, or its result.
        done, total: Completed steps, bytes or points, and how many there are; None if unknown.
    """

    name: str
    phase: str
    reason: str | None = None
    message: str | None = None
    progress: str | None = None
    done: int | None = None
    total: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState(JobState):
    """A snapshot of an agent.

    Attributes:
        proven: Whether its verification succeeded; None if that is not known.
        proof: The same in words, with the reason if it is not proven.
        where: Location of its files; "same disk" is the disk of the agent's own server.
    """

    proven: bool | None = None
    proven_at: datetime | None = None
    proof: str = ""
    size_bytes: int | None = None
    where: str = ""
    qdrant_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreState(JobState):
    """A restore into an agent.

    Attributes:
        previous_until: Time until which the replaced memories are kept for a rollback.
    """

    mode: str = "Swap"
    source: str | None = None
    rolled_back_at: datetime | None = None
    previous_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState(Answer):
    """Status of an agent's object. Unknown parts are None.

    Attributes:
        state: State in words, for example "ready, not in sync (AwaitingApproval)".
        plan: None if the collection is as the object asks.
        snapshots, restores: The newest 50, newest first; None if the API cannot see any.
        commands: Command lines by purpose, such as `approve` and `undo` for a plan.
    """

    agent: str
    namespace: str
    name: str
    state: str | None = None
    generation: int | None = None
    observed_generation: int | None = None
    deleted_at: datetime | None = None
    conditions: tuple[StateCondition, ...] | None = None
    drift: tuple[Drift, ...] | None = None
    plan: AgentPlan | None = None
    rebuild: RebuildProgress | None = None
    capacity: ServerCapacity | None = None
    next_snapshot_at: datetime | None = None
    last_proven: SnapshotState | None = None
    snapshots: tuple[SnapshotState, ...] | None = None
    snapshots_total: int | None = None
    restores: tuple[RestoreState, ...] | None = None
    restores_total: int | None = None
    commands: Mapping[str, str]


def state(agent: str) -> Call[AgentState]:
    """Read the status of the agent's object: conditions, plan, rebuild, snapshots and restores.

    A caller that is limited to some users may not read it.
    """
    return Call(method="GET", path=build_path(agent, "state"), read=_read_state)


def _read_state(document: Json) -> AgentState:
    lists: dict[str, type[Answer]] = {"conditions": StateCondition, "drift": Drift}
    lists |= {"snapshots": SnapshotState, "restores": RestoreState}
    values: dict[str, type[Answer]] = {"rebuild": RebuildProgress, "capacity": ServerCapacity}
    values |= {"last_proven": SnapshotState}
    read: Json = {name: _read_optional(type_, document.get(name)) for name, type_ in values.items()}
    for name, type_ in lists.items():
        entries = document.get(name)
        read[name] = None if entries is None else [read_value(type_, entry) for entry in entries]
    if plan := document.get("plan"):
        changes = list(map(partial(read_value, PlannedChange), plan["changes"]))
        read["plan"] = read_value(AgentPlan, plan | {"changes": changes})
    return read_value(AgentState, document | read)


def _read_optional(type_: type[A], document: Json | None) -> A | None:
    return None if document is None else read_value(type_, document)
