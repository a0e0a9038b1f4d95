"""Preset of an object that names none: the recorded one of its collection; Standard for a new object."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.presets import CORTEX, DEFAULT_PRESET, IMPORTANCE, PRESETS, STANDARD
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import READY, Stage

PHYSICAL = "agent_memory_probe__1"
KEY = Key("AgentMemory", "agents", "probe")


async def stage_with(**spec: Any) -> Stage:
    """Return a stage with a converged object."""
    stage = Stage()
    stage.put(connection_document())
    await stage.run(stage.put(memory_document(**spec)))
    stage.store.points[PHYSICAL] = 5
    return stage


def rewrite_marker(stage: Stage, **figures: Any) -> None:
    live = stage.store.collections[PHYSICAL]
    assert live.marker is not None
    stage.store.collections[PHYSICAL] = replace(live, marker=replace(live.marker, **figures))


async def run_again(stage: Stage, *, keeps_status: bool, **spec: Any) -> Json:
    """Run a pass over the object; return its status."""
    status = {"status": stage.status(KEY)} if keeps_status else {}
    stage.store.calls.clear()
    stage.put(memory_document(metadata={"generation": 2}, **spec) | status)
    await stage.run(KEY)
    assert stage.short(KEY) == READY
    return stage.status(KEY)


def preset_in_force(stage: Stage) -> tuple[str | None, str]:
    marker = stage.store.collections[PHYSICAL].marker
    assert marker is not None
    return marker.preset, stage.status(KEY)["effective"]["preset"]


async def test_new_object_gets_standard() -> None:
    stage = await stage_with(preset=None)

    assert preset_in_force(stage) == ("standard", "standard")
    assert stage.store.collections[PHYSICAL].has_keyword
    assert STANDARD.name == DEFAULT_PRESET


@pytest.mark.parametrize("keeps_status", [True, False], ids=["upgraded", "applied again, or restored without status"])
async def test_object_of_an_older_operator_keeps_cortex(keeps_status: bool) -> None:
    stage = await stage_with(preset="cortex")
    rewrite_marker(stage, preset=None)

    status = await run_again(stage, keeps_status=keeps_status, preset=None)

    assert preset_in_force(stage) == ("cortex", "cortex")
    assert status["effective"]["presetRevision"] == CORTEX.revision
    assert status["effective"]["scoring"]["weights"]["similarity"] == CORTEX.weights.similarity
    assert stage.store.changes == ["WriteMarker"]
    assert not stage.store.collections[PHYSICAL].has_keyword


@pytest.mark.parametrize("keeps_status", [True, False])
@pytest.mark.parametrize("preset", ["brain", "none", "standard", "cortex"])
async def test_recorded_preset_is_kept(preset: str, keeps_status: bool) -> None:
    stage = await stage_with(preset=preset)
    before = stage.store.collections[PHYSICAL]

    await run_again(stage, keeps_status=keeps_status, preset=None)

    assert preset_in_force(stage) == (preset, preset)
    assert replace(stage.store.collections[PHYSICAL], marker=None) == replace(before, marker=None)


async def test_named_preset_overrides_the_recorded_one() -> None:
    stage = await stage_with(preset="cortex")

    await run_again(stage, keeps_status=False, preset="none")

    assert preset_in_force(stage) == ("none", "none")


async def test_recorded_revision_is_kept_until_approval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await stage_with(preset="importance")
    newer = replace(IMPORTANCE, revision=2, lifecycle=replace(IMPORTANCE.lifecycle, remove_hidden_days=30))
    monkeypatch.setitem(PRESETS, "importance", (IMPORTANCE, newer))
    stage.put(memory_document(preset=None))

    await stage.run(KEY)

    assert preset_in_force(stage) == ("importance", "importance")
    assert stage.status(KEY)["effective"]["presetRevision"] == 1
    assert stage.status(KEY)["plan"]["presetRevision"] == 2


async def test_unknown_recorded_preset_is_an_error() -> None:
    stage = await stage_with(preset="cortex")
    rewrite_marker(stage, preset="tomorrow")
    stage.store.calls.clear()
    stage.put(memory_document(preset=None))

    await stage.run(KEY)

    assert stage.short(KEY)[0] == ("Ready", "False", "InvalidSpec")
    assert stage.store.changes == []


def test_both_defaults_share_the_checked_figures() -> None:
    """`preset_checks.py` reads no collection, so its errors about a new object must hold for both defaults."""
    for figure in ("hnsw", "model"):
        assert getattr(PRESETS["standard"][-1], figure) == getattr(CORTEX, figure)
    assert STANDARD.fusion.method == CORTEX.fusion.method
