"""Bulk approval of a newer preset revision; the test acts as the operator of the objects."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret
from agentmemory_operator.controllers.approve_all import ApprovalResult, ApprovalTarget, BulkApproval
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime import tasks
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, Metadata

DIGEST = "0123456789ab"
CONVERGED = {"type": "InSync", "status": "True", "reason": "Converged", "message": "as asked"}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "serves"}


def withheld(name: str, *, points: int = 1, reason: str = "AwaitingApproval", **more: Any) -> Json:
    """Return an object with a withheld plan of a newer revision; `more` overrides its status."""
    in_sync = {"type": "InSync", "status": "False", "reason": reason, "message": f"{name} waits"}
    plan = {"digest": DIGEST, "changes": [], "presetRevision": 2}
    status = {"conditions": [READY, in_sync], "plan": plan, "collection": {"points": points}, "observedGeneration": 1}
    metadata = {"namespace": "agents", "name": name, "generation": 1, "annotations": {}}
    return {"kind": "AgentMemory", "metadata": metadata, "spec": {"preset": "cortex"}, "status": status | more}


def completed_status(status: Json, /, **in_sync: Any) -> Json:
    """Return a status without a plan and with another InSync condition."""
    left = {name: value for name, value in status.items() if name != "plan"}
    return left | {"conditions": [READY, CONVERGED | in_sync]}


@dataclass
class Objects:
    """Implements ports.JobObjects for AgentMemories; an approval takes effect after some reads.

    Attributes:
        ends: Final condition InSync by object name; Converged by default.
        reads_until_end: Reads of an object before it ends.
        max_concurrent: Largest number of objects in progress at the same time.
    """

    documents: dict[str, Json]
    ends: dict[str, Json] = field(default_factory=dict)
    reads_until_end: int = 2
    max_concurrent: int = 0
    approved: list[str] = field(default_factory=list)
    fails_next_read: bool = False
    left: dict[str, int] = field(default_factory=dict)

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        await asyncio.sleep(0)
        if name not in self.documents:
            raise NotFound(name)
        if self.fails_next_read:
            self.fails_next_read = False
            raise TransientError("away")
        self._advance(name)
        return self.documents[name]

    def _advance(self, name: str) -> None:
        if name not in self.left:
            return
        self.left[name] -= 1
        document = self.documents[name]
        if self.left[name] <= 0:
            del self.left[name]
            document["status"] = completed_status(document["status"], **self.ends.get(name, {}))

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        return list(self.documents.values())

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        self.approved.append(metadata.name)
        document = self.documents[metadata.name]
        document["metadata"]["annotations"] |= {key: value for key, value in annotations.items() if value}
        if self.reads_until_end:
            document["status"] = completed_status(document["status"], status="False", reason="RebuildRunning")
            self.left[metadata.name] = self.reads_until_end
        self.max_concurrent = max(self.max_concurrent, len(self.left))

    async def create_object(self, document: Json) -> bool:
        raise AssertionError("nothing is made")

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        raise AssertionError("nothing is deleted")

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        raise AssertionError("no Secret is read")


async def run(objects: Objects, **options: Any) -> tuple[list[ApprovalResult], list[ApprovalTarget]]:
    """Approve all; return the results and the objects not started."""
    done: list[ApprovalResult] = []
    bulk = BulkApproval(
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
    left = await bulk.run(await bulk.find())
    return done, left


def objects_of(*documents: Json, **more: Any) -> Objects:
    return Objects({document["metadata"]["name"]: document for document in documents}, **more)


@pytest.mark.parametrize("at_once", [1, 2])
async def test_concurrency_is_limited(at_once: int) -> None:
    objects = objects_of(*(withheld(f"bot-{number}") for number in range(5)))

    done, left = await run(objects, concurrency=at_once)

    assert sorted(objects.approved) == [f"bot-{number}" for number in range(5)]
    assert ([result.is_done for result in done], left) == ([True] * 5, [])
    assert objects.max_concurrent == at_once


async def test_smallest_objects_are_first() -> None:
    objects = objects_of(withheld("large", points=900), withheld("small", points=2), withheld("middle", points=30))

    await run(objects)

    assert objects.approved == ["small", "middle", "large"]


FAILED = {"status": "False", "reason": "RebuildFailed", "message": "the disk is full"}


async def test_failure_stops_remaining_objects() -> None:
    objects = objects_of(*(withheld(f"bot-{number}") for number in range(4)), ends={"bot-1": FAILED})

    done, left = await run(objects)

    assert [(result.agent, result.is_done) for result in done] == [("agents/bot-0", True), ("agents/bot-1", False)]
    assert done[1].message == "the disk is full"
    assert [one.name for one in left] == ["bot-2", "bot-3"]
    assert objects.approved == ["bot-0", "bot-1"]


async def test_failure_is_skipped_on_request() -> None:
    objects = objects_of(*(withheld(f"bot-{number}") for number in range(4)), ends={"bot-1": FAILED})

    done, left = await run(objects, continues_on_failure=True)

    assert [result.is_done for result in done] == [True, False, True, True]
    assert left == []


async def test_earlier_approval_is_awaited() -> None:
    """An interrupted run may have left an approved object."""
    objects = objects_of(withheld("first"), withheld("second"))
    first = objects.documents["first"]
    await objects.annotate("AgentMemory", Metadata(name="first", namespace="agents"), {APPROVE_PLAN: DIGEST})
    assert first["status"]["conditions"][1]["reason"] == "RebuildRunning"

    done, _ = await run(objects)

    assert [result.agent for result in done] == ["agents/first", "agents/second"]
    assert objects.approved == ["first", "second"]


@pytest.mark.parametrize(
    "other",
    [
        withheld("other", plan={"digest": DIGEST, "changes": []}),
        withheld("other") | {"spec": {"preset": "brain"}},
        withheld("other", observedGeneration=0),
        withheld("other", conditions=[READY, CONVERGED], plan=None),
    ],
    ids=["its own change", "another preset", "status older than the spec", "converged"],
)
async def test_other_objects_are_untouched(other: Json) -> None:
    objects = objects_of(other)

    assert await run(objects) == ([], [])
    assert objects.approved == []


async def test_changed_plan_is_not_approved() -> None:
    objects = objects_of(withheld("bot"))
    bulk = BulkApproval(
        objects=objects,
        preset="cortex",
        namespace="",
        report_started=lambda _: None,
        report=(done := []).append,
        poll_s=0.001,
    )
    chosen = await bulk.find()
    objects.documents["bot"]["status"]["plan"]["digest"] = "ba9876543210"

    await bulk.run(chosen)

    assert ([result.is_done for result in done], objects.approved) == ([False], [])
    assert "run the command again" in done[0].message


async def test_missing_operator_is_reported() -> None:
    done, _ = await run(objects_of(withheld("bot"), reads_until_end=0), ack_timeout_s=0.005)

    assert [result.is_done for result in done] == [False]
    assert "is one running?" in done[0].message


async def test_deleted_object_is_reported() -> None:
    objects = objects_of(withheld("bot"), reads_until_end=50)

    done, _ = await run(objects, report_started=lambda _: objects.documents.clear())

    assert [result.message for result in done] == ["it was deleted in the meantime"]


async def test_transient_error_is_retried() -> None:
    objects = objects_of(withheld("bot"))

    done, _ = await run(objects, report_started=lambda _: setattr(objects, "fails_next_read", True))

    assert [result.is_done for result in done] == [True]


async def test_lasting_outage_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_OUTAGE_S", 0.005)
    objects = objects_of(withheld("bot"))

    async def read_object(*_: Any) -> Json:
        raise TransientError("the API server is away")

    done, _ = await run(objects, report_started=lambda _: setattr(objects, "read_object", read_object))

    assert [result.is_done for result in done] == [False]
    assert "run the command again: it could not be read for 0 s: the API server is away" in done[0].message


async def test_unreadable_object_fails_alone() -> None:
    objects = objects_of(withheld("bot"), withheld("other"), fails_next_read=True)

    done, left = await run(objects, continues_on_failure=True)

    assert ([result.is_done for result in done], left) == ([False, True], [])
    assert done[0].message == "run the command again: away"
