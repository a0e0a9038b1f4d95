"""Approve what the newer revision of a preset asks for of every object, a few at a time.

What was approved is told by the objects themselves: whoever was interrupted runs the same again, and what is under way
is waited for before anything else is approved.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.controllers.rules.approval import (
    ApprovalProgress,
    Waiting,
    approval,
    is_seen,
    progress_of,
    waiting_of,
)
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.cache import AGENT_MEMORY
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, Metadata
from agentmemory_operator.spec.presets import DEFAULT_PRESET


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An object whose plan is to be carried out.

    Attributes:
        waiting: what is to be approved; None where that has been done.
        approved: the value of its approval.
    """

    namespace: str
    name: str
    points: int
    approved: str
    waiting: Waiting | None = None

    def __str__(self) -> str:
        """Namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedObject:
    """What became of one object.

    Attributes:
        message: why; with the way out where it failed.
    """

    agent: str
    is_done: bool
    message: str


@dataclass(slots=True, kw_only=True)
class ApproveAll:
    """Approves the newer revision of a preset, object by object.

    Attributes:
        namespace: of the objects; empty is all.
        begin: called with each object whose plan is approved.
        tell: called with what became of each, in the order of the ends.
        at_once: objects at a time.
        keeps_going: one that fails stops no other.
        poll_s: between two looks at one that is under way.
        seen_within_s: until an operator has to act on an approval.
    """

    objects: JobObjects
    preset: str
    namespace: str
    begin: Callable[[Chosen], None]
    tell: Callable[[ApprovedObject], None]
    at_once: int = 1
    keeps_going: bool = False
    poll_s: float = 0.5
    seen_within_s: float = 60.0
    _has_failed: bool = field(default=False, init=False)

    async def find(self) -> list[Chosen]:
        """The objects to move: those under way first, then the smallest: where it fails, it fails early."""
        documents = await self.objects.list_in(AGENT_MEMORY, self.namespace)
        ours = (document for document in documents if _preset_of(document) == self.preset)
        chosen = [one for one in map(_chosen, ours) if one is not None]
        return sorted(chosen, key=lambda one: (one.waiting is not None, one.points, one.namespace, one.name))

    async def run(self, chosen: Sequence[Chosen]) -> list[Chosen]:
        """Move objects, a bounded number at once; return those that were not begun because another one failed."""
        turns, left = asyncio.Semaphore(self.at_once), list[Chosen]()

        async def in_turn(one: Chosen) -> None:
            async with turns:
                if self._has_failed and not self.keeps_going and one.waiting is not None:
                    left.append(one)
                    return
                result = await self._move(one)
                self._has_failed = self._has_failed or not result.is_done
            self.tell(result)

        await asyncio.gather(*(in_turn(one) for one in chosen))
        return left

    async def _move(self, one: Chosen) -> ApprovedObject:
        try:
            if one.waiting is not None:
                if (trouble := await self._approve(one)) is not None:
                    return ApprovedObject(agent=str(one), is_done=False, message=trouble)
                self.begin(one)
            return await self._end_of(one)
        except NotFound:
            return ApprovedObject(agent=str(one), is_done=False, message="it was deleted in the meantime")

    async def _approve(self, one: Chosen) -> str | None:
        """Approve what was found; return why not, where the object asks for something else by now."""
        document = await self.objects.read_object(AGENT_MEMORY, one.namespace, one.name)
        now = waiting_of(document)
        if now is None or now.value != one.approved:
            return "its plan has changed since it was listed: run the command again"
        metadata = Metadata.model_validate(document["metadata"])
        try:
            await self.objects.annotate(AGENT_MEMORY, metadata, approval(one.approved))
        except TransientError as exc:
            return f"run the command again: {exc}"
        return None

    async def _end_of(self, one: Chosen) -> ApprovedObject:
        """What became of an approved plan, once that is known."""
        unseen_s = 0.0
        while True:
            await asyncio.sleep(self.poll_s)
            try:
                document = await self.objects.read_object(AGENT_MEMORY, one.namespace, one.name)
            except NotFound:
                raise
            except TransientError:
                continue
            progress, message = progress_of(document, one.approved)
            if progress is ApprovalProgress.WAITS:
                unseen_s += self.poll_s
                if unseen_s > self.seen_within_s:
                    said = f"no operator acted on the approval within {self.seen_within_s:.0f} s: is one running?"
                    return ApprovedObject(agent=str(one), is_done=False, message=said)
            elif progress is not ApprovalProgress.GOES_ON:
                return ApprovedObject(agent=str(one), is_done=progress is ApprovalProgress.DONE, message=message)


def _preset_of(document: Mapping[str, Any]) -> str:
    effective = (document.get("status") or {}).get("effective") or {}
    return str(document["spec"].get("preset") or effective.get("preset") or DEFAULT_PRESET)


def _chosen(document: Json) -> Chosen | None:
    """An object with what there is to do about it, None where that is nothing."""
    metadata, status = document["metadata"], document.get("status") or {}
    points = int((status.get("collection") or {}).get("points") or 0)
    place: Mapping[str, Any] = {"namespace": metadata["namespace"], "name": metadata["name"], "points": points}
    waiting = waiting_of(document)
    if waiting is not None:
        is_meant = waiting.revision is not None and is_seen(document)
        return Chosen(**place, approved=waiting.value, waiting=waiting) if is_meant else None
    approved = (metadata.get("annotations") or {}).get(APPROVE_PLAN)
    if not approved or progress_of(document, approved)[0] is not ApprovalProgress.GOES_ON:
        return None
    return Chosen(**place, approved=approved)
