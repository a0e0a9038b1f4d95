"""A newer revision of a preset reindexes nothing unasked: it is planned, held and approved like any other change."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.domain.effective import effective_ranking
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.presets import CORTEX, PRESETS, Weights
from agentmemory_operator.ports import Json
from agentmemory_operator.services.objects import Key
from tests.support.fakes import connection_document, memory_document
from tests.unit.services.test_passes import READY, Stage

WEIGHTS = Weights(similarity=0.8, recency=0.1, utility=0.1)
SECOND = replace(CORTEX, revision=2, m=24, weights=WEIGHTS)
PHYSICAL = "agent_memory_probe__1"
HELD = [("Ready", "True", "Serving"), ("InSync", "False", "AwaitingApproval")]


@pytest.fixture
async def stage() -> Stage:
    """A converged object with five memories under the first revision."""
    stage = Stage()
    stage.put(connection_document())
    await stage.run(stage.put(memory_document()))
    stage.store.points[PHYSICAL] = 5
    stage.store.calls.clear()
    return stage


async def run_again(
    stage: Stage,
    *,
    approved: str | None = None,
    generation: int = 1,
    index: Json | None = None,
    spec: Json | None = None,
) -> tuple[Key, Json]:
    """Do a pass over the object as it is now; return its key and status."""
    annotations = {"agentmemory.dev/approve-plan": approved} if approved else {}
    key = Key("AgentMemory", "agents", "probe")
    document = memory_document(
        metadata={"annotations": annotations, "generation": generation}, **{"index": index, **(spec or {})}
    )
    stage.put(document | {"status": stage.status(key)})
    await stage.run(key)
    return key, stage.status(key)


def release(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    """Let the operator come with a second revision."""
    monkeypatch.setitem(PRESETS, "cortex", (CORTEX, replace(SECOND, **figures)))


def weights_of(status: Json) -> Weights:
    return effective_ranking(parse_agent_memory(memory_document() | {"status": status})).weights


async def test_a_revision_that_would_reindex_is_held_as_a_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, status = await run_again(stage)

    assert stage.short(key) == HELD
    assert stage.store.changes == []
    assert stage.store.collections[PHYSICAL].m == CORTEX.m
    assert status["effective"]["presetRevision"] == 1
    assert status["effective"]["scoring"]["weights"]["similarity"] == CORTEX.weights.similarity
    assert weights_of(status) == CORTEX.weights
    assert [(change["class"], change["held"]) for change in status["plan"]["changes"]] == [
        ("Reindex", True),
        ("InPlace", True),
    ]
    assert f"agentmemory.dev/approve-plan={status['plan']['digest']}" in status["plan"]["refusal"]
    assert "5 points" in status["plan"]["refusal"]
    assert status["plan"]["presetRevision"] == 2


async def test_a_held_revision_is_told_once_and_written_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    await run_again(stage)
    writes = stage.cluster.writes

    await run_again(stage)

    assert stage.cluster.writes == writes


async def test_the_approved_plan_is_carried_out_with_all_figures(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    _, status = await run_again(stage)

    key, status = await run_again(stage, approved=status["plan"]["digest"])

    assert stage.short(key) == READY
    assert stage.store.collections[PHYSICAL].m == 24
    assert status["effective"]["presetRevision"] == 2
    assert status["effective"]["scoring"]["weights"]["similarity"] == WEIGHTS.similarity
    assert weights_of(status) == WEIGHTS


async def test_another_digest_approves_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, _ = await run_again(stage, approved="0123456789ab")

    assert (stage.short(key), stage.store.changes) == (HELD, [])


async def test_an_edit_that_shapes_nothing_leaves_the_digest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    _, before = await run_again(stage)

    _, after = await run_again(stage, generation=2)

    assert after["plan"]["digest"] == before["plan"]["digest"]


async def test_the_object_s_own_changes_are_made_under_the_revision_in_force(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch)

    key, _ = await run_again(stage, generation=2, index={"hnsw": {"efConstruct": 200}})

    live = stage.store.collections[PHYSICAL]
    assert (live.m, live.ef_construct) == (CORTEX.m, 200)
    assert live.marker is not None
    assert live.marker.preset_revision == 1
    assert stage.short(key) == HELD


async def test_a_field_that_decides_the_figure_leaves_nothing_to_hold(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch)

    key, status = await run_again(stage, generation=2, index={"hnsw": {"m": 24}})

    assert stage.short(key) == READY
    assert status["effective"]["presetRevision"] == 2


async def test_a_revision_that_reindexes_nothing_comes_into_force(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, m=CORTEX.m)

    key, status = await run_again(stage)

    assert stage.short(key) == READY
    assert status["effective"]["presetRevision"] == 2
    assert weights_of(status) == WEIGHTS


async def test_a_new_object_has_the_newest_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    stage = Stage()
    stage.put(connection_document())
    key = stage.put(memory_document())

    await stage.run(key)

    assert stage.store.collections[PHYSICAL].m == 24
    assert stage.status(key)["effective"]["presetRevision"] == 2


async def test_a_revision_that_asks_for_a_rebuild_is_approved_as_a_whole_and_left_to_the_rebuild(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is done to the collection that is about to be replaced, and its digest stays what it is."""
    release(monkeypatch, distance="Dot")
    _, status = await run_again(stage)
    assert "Rebuild and Reindex of 5 points" in status["plan"]["refusal"]

    for _ in range(2):
        key, status = await run_again(stage, approved=status["plan"]["digest"])

    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "RebuildRunning")]
    assert [change["held"] for change in status["plan"]["changes"]] == [False] * 3
    live = stage.store.collections[PHYSICAL]
    assert (live.distance, live.m, stage.store.changes) == ("Cosine", CORTEX.m, [])
    assert status["effective"]["presetRevision"] == 1


async def test_no_policy_lets_an_upgrade_rebuild_unasked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, distance="Dot")

    key, _ = await run_again(stage, spec={"changePolicy": "Apply"})

    assert stage.short(key) == HELD


async def test_a_rebuild_that_the_object_may_have_brings_the_newer_figures_along(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch)

    key, status = await run_again(stage, spec={"changePolicy": "Apply", "index": {"distance": "Dot"}})

    assert stage.short(key)[1] == ("InSync", "False", "RebuildRunning")
    assert [change["class"] for change in status["plan"]["changes"]] == ["Rebuild", "Reindex", "InPlace"]
    assert stage.store.changes == []


async def test_where_no_rebuild_is_allowed_one_of_an_upgrade_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, distance="Dot")

    key, _ = await run_again(stage, spec={"changePolicy": "Never"})

    assert stage.short(key)[1] == ("InSync", "False", "RebuildNotAllowed")


async def test_a_revision_that_is_not_known_holds_everything_that_costs(stage: Stage) -> None:
    live = stage.store.collections[PHYSICAL]
    assert live.marker is not None
    stage.store.collections[PHYSICAL] = replace(live, m=8, marker=replace(live.marker, preset_revision=9))

    key, status = await run_again(stage)
    assert (stage.short(key), stage.store.changes) == (HELD, [])

    key, _ = await run_again(stage, approved=status["plan"]["digest"])
    assert stage.short(key) == READY
    assert stage.store.collections[PHYSICAL].m == CORTEX.m
