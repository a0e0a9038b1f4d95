"""Newer revisions of a preset: planned, held and approved like any other change."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.changes import Rebuild
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.effective.settings import effective_lifecycle, effective_ranking, effective_settings
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import BRAIN, COGNITIVE, CORTEX, IMPORTANCE, KEYED, PRESETS, Preset, Weights
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.plans import with_changes
from tests.unit.controllers.test_agent_memory_pass import READY, Stage

WEIGHTS = Weights(similarity=0.8, recency=0.1, utility=0.1)
SECOND = with_changes(CORTEX, revision=CORTEX.revision + 1, m=24, weights=WEIGHTS)
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
    """Run a pass over the object; return its key and status."""
    annotations = {"agentmemory.dev/approve-plan": approved} if approved else {}
    key = Key("AgentMemory", "agents", "probe")
    document = memory_document(
        metadata={"annotations": annotations, "generation": generation}, **{"index": index, **(spec or {})}
    )
    stage.put(document | {"status": stage.status(key)})
    await stage.run(key)
    return key, stage.status(key)


def release(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    """Add a second revision to the operator's presets."""
    monkeypatch.setitem(PRESETS, "cortex", (CORTEX, with_changes(SECOND, **figures)))


def weights_of(status: Json) -> Weights:
    return effective_ranking(parse_agent_memory(memory_document() | {"status": status})).weights


async def test_revision_with_a_reindex_is_held_as_a_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, status = await run_again(stage)

    assert stage.short(key) == HELD
    assert stage.store.changes == []
    assert stage.store.collections[PHYSICAL].hnsw.m == CORTEX.hnsw.m
    assert status["effective"]["presetRevision"] == CORTEX.revision
    assert status["effective"]["scoring"]["weights"]["similarity"] == CORTEX.weights.similarity
    assert weights_of(status) == CORTEX.weights
    assert [(change["class"], change["held"]) for change in status["plan"]["changes"]] == [
        ("Reindex", True),
        ("InPlace", True),
    ]
    assert f"agentmemory.dev/approve-plan={status['plan']['digest']}" in status["plan"]["refusal"]
    assert "5 points" in status["plan"]["refusal"]
    assert status["plan"]["presetRevision"] == SECOND.revision


async def test_held_revision_is_written_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    await run_again(stage)
    writes = stage.cluster.writes

    await run_again(stage)

    assert stage.cluster.writes == writes


async def test_approved_plan_applies_all_figures(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    _, status = await run_again(stage)

    key, status = await run_again(stage, approved=status["plan"]["digest"])

    assert stage.short(key) == READY
    assert stage.store.collections[PHYSICAL].hnsw.m == 24
    assert status["effective"]["presetRevision"] == SECOND.revision
    assert status["effective"]["scoring"]["weights"]["similarity"] == WEIGHTS.similarity
    assert weights_of(status) == WEIGHTS


async def test_other_digest_approves_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, _ = await run_again(stage, approved="0123456789ab")

    assert (stage.short(key), stage.store.changes) == (HELD, [])


async def test_unrelated_edit_keeps_the_digest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    _, before = await run_again(stage)

    _, after = await run_again(stage, generation=2)

    assert after["plan"]["digest"] == before["plan"]["digest"]


async def test_own_changes_use_the_revision_in_force(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, _ = await run_again(stage, generation=2, index={"hnsw": {"efConstruct": 200}})

    live = stage.store.collections[PHYSICAL]
    assert (live.hnsw.m, live.hnsw.ef_construct) == (CORTEX.hnsw.m, 200)
    assert live.marker is not None
    assert live.marker.preset_revision == CORTEX.revision
    assert stage.short(key) == HELD


async def test_own_field_releases_a_held_figure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, status = await run_again(stage, generation=2, index={"hnsw": {"m": 24}})

    assert stage.short(key) == READY
    assert status["effective"]["presetRevision"] == SECOND.revision


async def test_revision_without_a_reindex_is_applied(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, m=CORTEX.hnsw.m)

    key, status = await run_again(stage)

    assert stage.short(key) == READY
    assert status["effective"]["presetRevision"] == SECOND.revision
    assert weights_of(status) == WEIGHTS


async def test_new_object_gets_the_newest_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)
    stage = Stage()
    stage.put(connection_document())
    key = stage.put(memory_document())

    await stage.run(key)

    assert stage.store.collections[PHYSICAL].hnsw.m == 24
    assert stage.status(key)["effective"]["presetRevision"] == SECOND.revision


async def test_revision_with_a_rebuild_is_left_to_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection to be replaced stays unchanged, and the digest stays the same."""
    release(monkeypatch, distance="Dot")
    _, status = await run_again(stage)
    assert "Rebuild and Reindex of 5 points" in status["plan"]["refusal"]

    for _ in range(2):
        key, status = await run_again(stage, approved=status["plan"]["digest"])

    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "RebuildRunning")]
    events = [(event.type, event.reason) for event in stage.cluster.events if event.reason in set(Reason)]
    assert events[-2:] == [("Warning", "AwaitingApproval"), ("Normal", "RebuildRunning")]
    assert [change["held"] for change in status["plan"]["changes"]] == [False] * 3
    live = stage.store.collections[PHYSICAL]
    assert (live.distance, live.hnsw.m, stage.store.changes) == ("Cosine", CORTEX.hnsw.m, [])
    assert status["effective"]["presetRevision"] == CORTEX.revision


async def test_upgrade_needs_approval_despite_apply(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, distance="Dot")

    key, _ = await run_again(stage, spec={"changePolicy": "Apply"})

    assert stage.short(key) == HELD


async def test_allowed_rebuild_includes_newer_figures(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch)

    key, status = await run_again(stage, spec={"changePolicy": "Apply", "index": {"distance": "Dot"}})

    assert stage.short(key)[1] == ("InSync", "False", "RebuildRunning")
    assert [change["class"] for change in status["plan"]["changes"]] == ["Rebuild", "Reindex", "InPlace"]
    assert stage.store.changes == []


async def test_forbidden_rebuild_of_an_upgrade_is_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, distance="Dot")

    key, _ = await run_again(stage, spec={"changePolicy": "Never"})

    assert stage.short(key)[1] == ("InSync", "False", "RebuildNotAllowed")


async def test_unknown_revision_holds_costly_changes(stage: Stage) -> None:
    live = stage.store.collections[PHYSICAL]
    assert live.marker is not None
    stage.store.collections[PHYSICAL] = with_changes(live, m=8, marker=replace(live.marker, preset_revision=9))

    key, status = await run_again(stage)
    assert (stage.short(key), stage.store.changes) == (HELD, [])

    key, _ = await run_again(stage, approved=status["plan"]["digest"])
    assert stage.short(key) == READY
    assert stage.store.collections[PHYSICAL].hnsw.m == CORTEX.hnsw.m


def without_required(preset: Preset) -> Preset:
    return replace(preset, types=tuple(replace(type_, required=()) for type_ in preset.types))


def without_endings(preset: Preset) -> Preset:
    return replace(preset, lifecycle=replace(preset.lifecycle, session_idle_hours=None, remove_hidden_days=None))


def without_defaults(preset: Preset) -> Preset:
    return replace(
        preset, types=tuple(replace(type_, confidence=None) for type_ in preset.types), knowledge_category=None
    )


def with_endings(preset: Preset) -> Preset:
    return replace(preset, lifecycle=replace(preset.lifecycle, remove_hidden_days=90))


async def converge_under(monkeypatch: pytest.MonkeyPatch, older: Preset, **spec: Any) -> Stage:
    """Return a converged object of an older revision; the current figures are the newer one."""
    stage = Stage()
    with monkeypatch.context() as before:
        before.setitem(PRESETS, older.name, (older,))
        stage.put(connection_document())
        await stage.run(stage.put(memory_document(preset=older.name, **spec)))
    stage.store.points[PHYSICAL] = 5
    stage.store.calls.clear()
    newer = replace(PRESETS[older.name][-1], revision=older.revision + 1)
    monkeypatch.setitem(PRESETS, older.name, (older, newer))
    return stage


def endings_in_force(status: Json, preset: str) -> tuple[float | None, float | None]:
    memory = parse_agent_memory(memory_document(preset=preset) | {"status": status})
    lifecycle = effective_lifecycle(memory)
    return lifecycle.session_idle_hours, lifecycle.remove_hidden_days


@pytest.mark.parametrize(
    ("preset", "warnings", "endings"),
    [
        (IMPORTANCE, ["idle for 24 hours", "hidden for 90 days"], (24, 90)),
        (KEYED, ["idle for 24 hours"], (24, None)),
    ],
    ids=lambda preset: getattr(preset, "name", None),
)
async def test_removal_rules_apply_after_approval(
    preset: Preset, warnings: list[str], endings: tuple[float | None, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await converge_under(monkeypatch, without_endings(preset))

    key, status = await run_again(stage, spec={"preset": preset.name})
    assert (stage.short(key), stage.store.changes) == (HELD, [])
    assert [words for words in warnings if words not in status["plan"]["refusal"]] == []
    assert (status["effective"]["presetRevision"], status["plan"]["presetRevision"]) == (1, 2)
    assert endings_in_force(status, preset.name) == (None, None)

    key, status = await run_again(stage, spec={"preset": preset.name}, approved=status["plan"]["digest"])

    assert stage.short(key) == READY
    assert (status["effective"]["presetRevision"], endings_in_force(status, preset.name)) == (2, endings)


async def test_own_removal_rules_release_a_held_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await converge_under(monkeypatch, without_endings(IMPORTANCE))

    key, status = await run_again(
        stage, spec={"preset": "importance", "lifecycle": {"sessionIdleHours": 0, "removeHiddenDays": 0}}, generation=2
    )

    assert stage.short(key) == READY
    assert status["effective"]["presetRevision"] == 2


async def test_stricter_types_are_held_without_own_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await converge_under(monkeypatch, without_required(COGNITIVE))

    key, status = await run_again(stage, spec={"preset": "cognitive"})
    assert stage.short(key) == HELD
    assert "new memories of type 'semantic' are rejected without domain" in status["plan"]["refusal"]
    types = [{"name": "semantic", "halfLifeDays": 30}]
    key, _ = await run_again(stage, spec={"preset": "cognitive", "types": types}, generation=2)

    assert stage.short(key) == READY


async def test_allowed_rebuild_does_not_add_removal_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await converge_under(monkeypatch, without_endings(COGNITIVE))
    spec = {"preset": "cognitive", "changePolicy": "Apply", "index": {"distance": "Dot"}}

    key, status = await run_again(stage, spec=spec, generation=2)
    assert stage.short(key) == HELD
    rebuild_digest = Plan(PHYSICAL, (Rebuild("index.distance", "Cosine", "Dot"),)).digest
    assert rebuild_digest != status["plan"]["digest"]
    key, again = await run_again(stage, spec=spec, generation=2, approved=rebuild_digest)
    assert stage.short(key) == HELD

    key, _ = await run_again(stage, spec=spec, generation=2, approved=again["plan"]["digest"])

    assert stage.short(key)[1] == ("InSync", "False", "RebuildRunning")


@pytest.mark.parametrize("older_of", [without_defaults, with_endings])
async def test_harmless_revision_is_applied(
    older_of: Callable[[Preset], Preset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harmless revision sets defaults for new memories, or removes a removal rule."""
    older = older_of(BRAIN)
    assert older != BRAIN
    stage = await converge_under(monkeypatch, older)

    key, status = await run_again(stage, spec={"preset": "brain"})

    assert ("InSync", "True", "Converged") in stage.short(key)
    assert (status["effective"]["presetRevision"], endings_in_force(status, "brain")) == (2, (None, None))
    settings = effective_settings(parse_agent_memory(memory_document(preset="brain") | {"status": status}))
    assert settings.knowledge_category == "general"
    assert {type_.confidence for type_ in settings.ranking.types} == {1.0}
