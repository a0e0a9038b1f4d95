"""What passes over manifests would do, and that nobody has to be asked for their cluster."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.controllers.inspection import PassPreview, PreviewOutcome, preview_passes, worst_outcome
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import ALIAS, desired_of

PHYSICAL = f"{ALIAS}__1"


def memory(name: str = "probe", **spec: Any) -> AgentMemory:
    """Return an object as a file has it: without uid and generation."""
    document = memory_document(name, **spec)
    document["metadata"] = {"name": name, "namespace": "agents"}
    return parse_agent_memory(document)


def a_store(**marker: Any) -> FakeCollectionStore:
    """Return a server with the collection of agents/probe of cluster-1, its marker changed."""
    made = desired_of()
    assert made.marker is not None
    live = replace(made, marker=replace(made.marker, **marker))
    return FakeCollectionStore(collections={PHYSICAL: live}, aliases={ALIAS: PHYSICAL}, points={PHYSICAL: 7})


async def preview(store: FakeCollectionStore | None, *memories: AgentMemory) -> list[PassPreview]:
    return [made async for made in preview_passes(memories or [memory()], store)]


async def test_against_an_empty_server_everything_is_made() -> None:
    (made,) = await preview(None)

    assert made.outcome is PreviewOutcome.CHANGES
    assert made.draft is not None
    assert [type(change).__name__ for change in made.draft.plan.changes] == [
        "CreateCollection",
        "CreateIndexes",
        "SetAlias",
    ]


async def test_the_object_s_own_collection_as_it_asks_is_unchanged() -> None:
    (made,) = await preview(a_store(uid="uid-9", generation=4))

    assert (made.outcome, made.draft and made.draft.plan.changes) == (PreviewOutcome.UNCHANGED, ())


async def test_a_rebuild_is_held_and_what_else_would_change_is_there() -> None:
    index = {"distance": "Euclid", "hnsw": {"m": 24}}

    (made,) = await preview(a_store(), memory(index=index))

    assert made.outcome is PreviewOutcome.HELD
    assert made.draft is not None
    assert [type(change).__name__ for change in made.draft.plan.changes] == ["Rebuild", "UpdateHnsw"]


async def test_another_object_s_collection_is_refused_by_name() -> None:
    (made,) = await preview(a_store(name="theirs"))

    assert made.outcome is PreviewOutcome.REFUSED
    assert made.refusal is not None
    assert made.refusal[0] == "CollectionNotOwned"
    assert "AgentMemory agents/theirs" in made.refusal[1]
    assert "of cluster" not in made.refusal[1], "files know no cluster"


async def test_the_second_object_with_a_slug_is_refused() -> None:
    first, second = await preview(None, memory(), memory("other", agent="probe"))

    assert (first.outcome, second.outcome) == (PreviewOutcome.CHANGES, PreviewOutcome.REFUSED)
    assert second.refusal is not None
    assert "that of agents/probe too" in second.refusal[1]


async def test_only_looking_is_asked_of_the_server() -> None:
    store = a_store()

    await preview(store, memory(index={"hnsw": {"m": 24}}))

    assert {method for method, _ in store.calls} == {"observe"}


async def test_a_server_that_is_away_is_an_error_and_no_plan() -> None:
    store = FakeCollectionStore(error=StoreUnavailable("away"))

    with pytest.raises(StoreUnavailable):
        await preview(store)


async def test_the_worst_outcome_counts() -> None:
    made = await preview(a_store(), memory(), memory("new"), memory("other", agent="probe"))

    assert worst_outcome(made[:1]) is PreviewOutcome.UNCHANGED
    assert worst_outcome(made[:2]) is PreviewOutcome.CHANGES
    assert worst_outcome(made) is PreviewOutcome.REFUSED
    assert worst_outcome([]) is PreviewOutcome.UNCHANGED


async def test_a_suspended_object_is_left_alone() -> None:
    store = a_store()

    (made,) = await preview(store, memory(suspend=True, index={"hnsw": {"m": 24}}))

    assert (made.outcome, store.calls) == (PreviewOutcome.SUSPENDED, [])


async def test_a_takeover_that_is_allowed_is_planned() -> None:
    document = memory_document()
    document["metadata"]["annotations"] = {"agentmemory.dev/takeover": "uid-of-theirs"}
    theirs = a_store(name="theirs", uid="uid-of-theirs")

    (made,) = await preview(theirs, parse_agent_memory(document))

    assert made.outcome is PreviewOutcome.CHANGES
    assert made.draft is not None
    assert [type(change).__name__ for change in made.draft.plan.changes] == ["WriteMarker"]
