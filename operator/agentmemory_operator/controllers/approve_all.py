"""Approve the newer revision of a preset for all objects that use it, a few at a time.

The objects themselves record the approvals. After an interruption the same command continues: it starts with the
objects with approved changes in progress.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentmemory_operator.controllers.rules.approval import (
    ApprovalProgress,
    PendingApproval,
    approval_annotations,
    find_pending_approval,
    is_status_current,
    read_progress,
)
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.runtime.tasks import read_through_outage
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, Metadata
from agentmemory_operator.spec.presets import DEFAULT_PRESET

# Maximum number of concurrent objects, unless the user chooses another.
CONCURRENCY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTarget:
    """Object with a plan to carry out.

    Attributes:
        points: Number of points in its collection, as its status reports; 0 if it reports none.
        approval_value: Value of the annotation that approves the plan.
        pending: Approval that the plan waits for. None if it is already approved.
    """

    namespace: str
    name: str
    points: int
    approval_value: str
    pending: PendingApproval | None = None

    def __str__(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResult:
    """Result of an approval of one object.

    Attributes:
        agent: Namespace/name of the object.
        is_done: True if the plan was carried out.
        message: Details; for a failure also the remedy.
    """

    agent: str
    is_done: bool
    message: str


@dataclass(slots=True, kw_only=True)
class BulkApproval:
    """Approves the newer revision of a preset, object by object.

    Attributes:
        namespace: Namespace of the objects; empty for all.
        report_started: Called with each object whose plan this run has approved. Not called for earlier approvals.
        report: Called with the result of each object, in order of completion.
        concurrency: Maximum number of objects in progress.
        continues_on_failure: True to start the remaining objects after one has failed.
        poll_s: Seconds between two reads of an object in progress.
        ack_timeout_s: Seconds after which an approval that no operator acts on counts as failed.
    """

    objects: JobObjects
    preset: str
    namespace: str
    report_started: Callable[[ApprovalTarget], None]
    report: Callable[[ApprovalResult], None]
    concurrency: int = CONCURRENCY
    continues_on_failure: bool = False
    poll_s: float = 0.5
    ack_timeout_s: float = 60.0
    _has_failed: bool = field(default=False, init=False)

    async def find(self) -> list[ApprovalTarget]:
        """Return the objects to process: those in progress, then those to approve, both by ascending number of points.

        A small collection reveals a fault early.

        Raises:
            TransientError: If the objects cannot be listed.
        """
        documents = await self.objects.list_in(AGENT_MEMORY, self.namespace)
        documents_of_preset = (document for document in documents if _preset_of(document) == self.preset)
        targets = [target for target in map(_chosen, documents_of_preset) if target is not None]
        return sorted(
            targets, key=lambda target: (target.pending is not None, target.points, target.namespace, target.name)
        )

    async def run(self, chosen: Sequence[ApprovalTarget]) -> list[ApprovalTarget]:
        """Approve plans and wait until they are applied, for at most `concurrency` objects at a time.

        An object that was deleted, or whose plan cannot be approved, gets a failed result.

        Returns:
            The objects whose plans were not approved, because another object had failed.

        Raises:
            AgentMemoryError: In development, if another author's manifest has the annotations of an approval, or the
                development stack created the object.
        """
        semaphore, not_started = asyncio.Semaphore(self.concurrency), list[ApprovalTarget]()

        async def approve_limited(target: ApprovalTarget) -> None:
            async with semaphore:
                if self._has_failed and not self.continues_on_failure and target.pending is not None:
                    not_started.append(target)
                    return
                result = await self._move(target)
                self._has_failed = self._has_failed or not result.is_done
            self.report(result)

        await asyncio.gather(*(approve_limited(target) for target in chosen))
        return not_started

    async def _move(self, target: ApprovalTarget) -> ApprovalResult:
        try:
            if target.pending is not None:
                if (error_message := await self._approve(target)) is not None:
                    return ApprovalResult(agent=str(target), is_done=False, message=error_message)
                self.report_started(target)
            return await self._end_of(target)
        except NotFound:
            return ApprovalResult(agent=str(target), is_done=False, message="it was deleted in the meantime")

    async def _approve(self, target: ApprovalTarget) -> str | None:
        """Approve a plan; return an error message if the plan has changed or Kubernetes is unavailable, else None.

        Raises:
            NotFound: If the object was deleted.
        """
        try:
            document = await self.objects.read_object(AGENT_MEMORY, target.namespace, target.name)
            pending = find_pending_approval(document)
            if pending is None or pending.value != target.approval_value:
                return "its plan has changed since it was listed: run the command again"
            metadata = Metadata.model_validate(document["metadata"])
            await self.objects.annotate(AGENT_MEMORY, metadata, approval_annotations(target.approval_value))
        except TransientError as exc:
            return f"run the command again: {exc}"
        return None

    async def _end_of(self, target: ApprovalTarget) -> ApprovalResult:
        """Wait for the end of an approved plan.

        The result is a failure if the plan fails, no operator acts on it within `ack_timeout_s`, or the object cannot
        be read for as long as `read_through_outage` retries.

        Raises:
            NotFound: If the object was deleted.
        """
        waited_s, read = 0.0, partial(self.objects.read_object, AGENT_MEMORY, target.namespace, target.name)
        while True:
            await asyncio.sleep(self.poll_s)
            try:
                document = await read_through_outage(read, poll_s=self.poll_s)
            except TransientError as exc:
                message = f"the approval stays; run the command again: {exc}"
                return ApprovalResult(agent=str(target), is_done=False, message=message)
            progress, message = read_progress(document, target.approval_value)
            if progress is ApprovalProgress.WAITS:
                waited_s += self.poll_s
                if waited_s > self.ack_timeout_s:
                    error_message = (
                        f"no operator acted on the approval within {self.ack_timeout_s:.0f} s: is one running?"
                    )
                    return ApprovalResult(agent=str(target), is_done=False, message=error_message)
            elif progress is not ApprovalProgress.IN_PROGRESS:
                return ApprovalResult(agent=str(target), is_done=progress is ApprovalProgress.DONE, message=message)


def _preset_of(document: Mapping[str, Any]) -> str:
    effective = (document.get("status") or {}).get("effective") or {}
    return str(document["spec"].get("preset") or effective.get("preset") or DEFAULT_PRESET)


def _chosen(document: Json) -> ApprovalTarget | None:
    """Return a target if an object waits for approval of a newer preset revision, or applies an approved plan.

    None for other objects, and while the status of a waiting object is not that of its current generation.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    points = int((status.get("collection") or {}).get("points") or 0)
    fields: Mapping[str, Any] = {"namespace": metadata["namespace"], "name": metadata["name"], "points": points}
    pending = find_pending_approval(document)
    if pending is not None:
        is_target = pending.revision is not None and is_status_current(document)
        return ApprovalTarget(**fields, approval_value=pending.value, pending=pending) if is_target else None
    approved = (metadata.get("annotations") or {}).get(APPROVE_PLAN)
    if not approved or read_progress(document, approved)[0] is not ApprovalProgress.IN_PROGRESS:
        return None
    return ApprovalTarget(**fields, approval_value=approved)
