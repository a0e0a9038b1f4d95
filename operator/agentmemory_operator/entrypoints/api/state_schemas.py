"""Response models of the state of an agent's object, for the OpenAPI document. `state_routes` renders the JSON."""

from typing import Literal

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import Time
from agentmemory_operator.entrypoints.api.memory_schemas import Answer

Phase = Literal["Running", "Succeeded", "Failed"]


class ConditionOut(Answer):
    """A condition of the object."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = Field(description="Explanation with the suggested fix.")
    since: Time | None = Field(description="Time of the last change of `status`.")


class DriftOut(Answer):
    """A change made directly in Qdrant that the operator has not reverted."""

    field: str | None = Field(description="Field of the spec.")
    desired: str | None = Field(description="Value in the object.")
    observed: str | None = Field(description="Value in Qdrant.")
    since: Time | None


class PlannedChangeOut(Answer):
    """A change of the collection that is not applied yet."""

    change: str | None = Field(description="Planned action.")
    change_class: str | None = Field(description="InPlace, Reindex, Rebuild or Destroy.")
    field: str | None = Field(description="Field of the spec that requires it.")
    current: str | None
    desired: str | None
    cost: str | None
    held: bool = Field(description="True if it waits; `reason` of the plan explains why.")


class PlanOut(Answer):
    """Changes that are not applied yet."""

    digest: str | None = Field(description="Identifies the plan in an approval.")
    reason: str | None = Field(description="Why changes wait, with the suggested fix.")
    costs: str | None = Field(description="Estimated costs; null if no new collection is needed.")
    changes: list[PlannedChangeOut] = Field(description="At most 64, in order.")


class RebuildOut(Answer):
    """The current or last rebuild of the collection, or its rollback."""

    kind: str | None = Field(description="Rebuild or Rollback.")
    state: str | None = Field(description="Running, Waiting, Paused, Held, Failed, Stopped or Done.")
    summary: str = Field(description="State in words, for example `step 2 of 8, Copy`.")
    message: str | None = Field(description="Current activity, reason for the wait, or result.")
    copied: int | None
    total: int | None
    source: str | None
    target: str | None
    started_at: Time | None
    moved_at: Time | None
    ended_at: Time | None


class CapacityOut(Answer):
    """How full the agent's Qdrant server is. Shares are rounded to a hundredth."""

    reason: str | None = Field(description="RoomLeft, LittleRoomLeft, ServerFull or CapacityUnknown.")
    memory_maps: float | None = Field(description="Used share of the memory maps; null if unknown.")
    open_files: float | None = Field(description="Used share of the open files; null if unknown or unlimited.")
    estimated: bool = Field(description="True if the share of memory maps is estimated from the collections.")


class JobOut(Answer):
    """Progress of a snapshot or restore."""

    name: str
    phase: Phase
    reason: str | None = Field(description="Reason of the condition that decides the phase, or the proof.")
    message: str | None = Field(description="What it does or waits for, or its result.")
    progress: str | None = Field(description="Current step; null after the end.")
    done: int | None = Field(description="Completed steps, bytes or points; null if unknown.")
    total: int | None = Field(description="Total number of them; null if unknown.")
    started_at: Time | None
    ended_at: Time | None
    points: int | None


class SnapshotOut(JobOut):
    """A snapshot of the agent: a MemorySnapshot."""

    proven: bool | None = Field(description="Whether its verification succeeded; null if that is not known.")
    proven_at: Time | None
    proof: str = Field(description="Whether it is verified, in words: `yes`, or why not.")
    size_bytes: int | None
    where: str = Field(description="`same disk` means: only on the disk of the agent's own server.")
    qdrant_version: str | None


class RestoreOut(JobOut):
    """A restore into the agent: a MemoryRestore."""

    mode: str
    source: str | None = Field(description="Restored snapshot, for example `snapshot nightly`, or its bucket.")
    rolled_back_at: Time | None
    previous_until: Time | None = Field(description="Time until which the replaced memories are kept for a rollback.")


class AgentStateOut(Answer):
    """Status of an agent's object, its snapshots and restores. Unknown parts are null."""

    agent: str
    namespace: str
    name: str = Field(description="Name of the AgentMemory.")
    state: str | None = Field(description="State in words, for example `ready, not in sync (AwaitingApproval)`.")
    generation: int | None
    observed_generation: int | None = Field(description="Generation that the operator has acted on.")
    deleted_at: Time | None = Field(description="Time of the request to delete the object.")
    conditions: list[ConditionOut] | None
    drift: list[DriftOut] | None
    plan: PlanOut | None = Field(description="null if the collection is as the object asks.")
    rebuild: RebuildOut | None = Field(description="null if there was none.")
    capacity: CapacityOut | None
    next_snapshot_at: Time | None = Field(description="null without a schedule.")
    last_proven: SnapshotOut | None = Field(description="Newest snapshot that is proven.")
    snapshots: list[SnapshotOut] | None = Field(description="Newest 50, newest first; null if the API cannot see any.")
    snapshots_total: int | None
    restores: list[RestoreOut] | None = Field(description="Newest 50, newest first; null if the API cannot see any.")
    restores_total: int | None
    commands: dict[str, str] = Field(
        description="Command lines by purpose: `approve` and `undo` for a plan, `status`, `snapshots`, `snapshot`,"
        " `restore`. The API itself changes no object."
    )
