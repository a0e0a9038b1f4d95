"""A newer revision of a preset approved object by object, on objects whose operator a test plays."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret
from agentmemory_operator.controllers.approve_all import ApprovalResult, ApprovalTarget, BulkApproval
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, Metadata

DIGEST = "0123456789ab"
CONVERGED = {"type": "InSync", "status": "True", "reason": "Converged", "message": "as asked"}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "serves"}


def held(name: str, *, points: int = 1, reason: str = "AwaitingApproval", **more: Any) -> Json:
    """Return an object that a newer revision holds, or `more` of its status."""
    in_sync = {"type": "InSync", "status": "False", "reason": reason, "message": f"{name} waits"}
    plan = {"digest": DIGEST, "changes": [], "presetRevision": 2}
    status = {"conditions": [READY, in_sync], "plan": plan, "collection": {"points": points}, "observedGeneration": 1}
    metadata = {"namespace": "agents", "name": name, "generation": 1, "annotations": {}}
    return {"kind": "AgentMemory", "metadata": metadata, "spec": {"preset": "cortex"}, "status": status | more}


def settled(status: Json, /, **in_sync: Any) -> Json:
    """Return a status in which the plan is gone and InSync says something else."""
    left = {name: value for name, value in status.items() if name != "plan"}
    return left | {"conditions": [READY, CONVERGED | in_sync]}


@dataclass
class Objects:
    """Implements ports.JobObjects for AgentMemories; an approval acts after some looks.

    Attributes:
        ends: the condition InSync that an object ends with, by name; Converged where it is not named.
        looks: of each object, before it ends.
        most: objects that were under way at once.
    """

    documents: dict[str, Json]
    ends: dict[str, Json] = field(default_factory=dict)
    looks: int = 2
    most: int = 0
    approved: list[str] = field(default_factory=list)
    is_away: bool = False
    left: dict[str, int] = field(default_factory=dict)

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        await asyncio.sleep(0)
        if name not in self.documents:
            raise NotFound(name)
        if self.is_away:
            self.is_away = False
            raise TransientError("away")
        self._go_on(name)
        return self.documents[name]

    def _go_on(self, name: str) -> None:
        if name not in self.left:
            return
        self.left[name] -= 1
        document = self.documents[name]
        if self.left[name] <= 0:
            del self.left[name]
            document["status"] = settled(document["status"], **self.ends.get(name, {}))

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        return list(self.documents.values())

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        self.approved.append(metadata.name)
        document = self.documents[metadata.name]
        document["metadata"]["annotations"] |= {key: value for key, value in annotations.items() if value}
        if self.looks:
            document["status"] = settled(document["status"], status="False", reason="RebuildRunning")
            self.left[metadata.name] = self.looks
        self.most = max(self.most, len(self.left))

    async def create_object(self, document: Json) -> bool:
        raise AssertionError("nothing is made")

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        raise AssertionError("nothing is deleted")

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        raise AssertionError("no Secret is read")


async def run(objects: Objects, **options: Any) -> tuple[list[ApprovalResult], list[ApprovalTarget]]:
    """Approve all; return what became of each and what was not begun."""
    done: list[ApprovalResult] = []
    everything = BulkApproval(
        objects=objects,
        **(
            {
                "preset": "cortex",
                "namespace": "",
                "report_started": lambda _: None,
                "report": done.append,
                "poll_s": 0.001,
            }
            | options
        ),
    )
    left = await everything.run(await everything.find())
    return done, left


def objects_of(*documents: Json, **more: Any) -> Objects:
    return Objects({document["metadata"]["name"]: document for document in documents}, **more)


@pytest.mark.parametrize("at_once", [1, 2])
async def test_all_are_moved_no_more_at_once_than_asked_for(at_once: int) -> None:
    objects = objects_of(*(held(f"bot-{number}") for number in range(5)))

    done, left = await run(objects, concurrency=at_once)

    assert sorted(objects.approved) == [f"bot-{number}" for number in range(5)]
    assert ([result.is_done for result in done], left) == ([True] * 5, [])
    assert objects.most == at_once


async def test_the_smallest_are_moved_first() -> None:
    objects = objects_of(held("large", points=900), held("small", points=2), held("middle", points=30))

    await run(objects)

    assert objects.approved == ["small", "middle", "large"]


FAILED = {"status": "False", "reason": "RebuildFailed", "message": "the disk is full"}


async def test_one_that_fails_stops_those_that_were_not_begun() -> None:
    objects = objects_of(*(held(f"bot-{number}") for number in range(4)), ends={"bot-1": FAILED})

    done, left = await run(objects)

    assert [(result.agent, result.is_done) for result in done] == [("agents/bot-0", True), ("agents/bot-1", False)]
    assert done[1].message == "the disk is full"
    assert [one.name for one in left] == ["bot-2", "bot-3"]
    assert objects.approved == ["bot-0", "bot-1"]


async def test_one_that_fails_stops_no_other_where_that_is_asked_for() -> None:
    objects = objects_of(*(held(f"bot-{number}") for number in range(4)), ends={"bot-1": FAILED})

    done, left = await run(objects, continues_on_failure=True)

    assert [result.is_done for result in done] == [True, False, True, True]
    assert left == []


async def test_what_was_approved_before_is_waited_for_and_the_rest_is_moved() -> None:
    """As after an interruption."""
    objects = objects_of(held("first"), held("second"))
    one = objects.documents["first"]
    await objects.annotate("AgentMemory", Metadata(name="first", namespace="agents"), {APPROVE_PLAN: DIGEST})
    assert one["status"]["conditions"][1]["reason"] == "RebuildRunning"

    done, _ = await run(objects)

    assert [result.agent for result in done] == ["agents/first", "agents/second"]
    assert objects.approved == ["first", "second"]


@pytest.mark.parametrize(
    "other",
    [
        held("other", plan={"digest": DIGEST, "changes": []}),
        held("other") | {"spec": {"preset": "brain"}},
        held("other", observedGeneration=0),
        held("other", conditions=[READY, CONVERGED], plan=None),
    ],
    ids=["its own change", "another preset", "not looked at since its edit", "converged"],
)
async def test_what_no_newer_revision_of_the_preset_holds_is_left_alone(other: Json) -> None:
    objects = objects_of(other)

    assert await run(objects) == ([], [])
    assert objects.approved == []


async def test_a_plan_that_changed_since_it_was_listed_is_not_approved() -> None:
    objects = objects_of(held("bot"))
    everything = BulkApproval(
        objects=objects,
        preset="cortex",
        namespace="",
        report_started=lambda _: None,
        report=(done := []).append,
        poll_s=0.001,
    )
    chosen = await everything.find()
    objects.documents["bot"]["status"]["plan"]["digest"] = "ba9876543210"

    await everything.run(chosen)

    assert ([result.is_done for result in done], objects.approved) == ([False], [])
    assert "run the command again" in done[0].message


async def test_an_approval_that_no_operator_acts_on_is_given_up() -> None:
    done, _ = await run(objects_of(held("bot"), looks=0), ack_timeout_s=0.005)

    assert [result.is_done for result in done] == [False]
    assert "is one running?" in done[0].message


async def test_an_object_that_is_deleted_meanwhile_is_told() -> None:
    objects = objects_of(held("bot"), looks=50)

    done, _ = await run(objects, report_started=lambda _: objects.documents.clear())

    assert [result.message for result in done] == ["it was deleted in the meantime"]


async def test_an_api_server_that_is_away_for_a_moment_fails_nothing() -> None:
    objects = objects_of(held("bot"))

    done, _ = await run(objects, report_started=lambda _: setattr(objects, "is_away", True))

    assert [result.is_done for result in done] == [True]
