"""Errors that depend on the figures of a preset or profile: found here, not by the CRD."""

import json
from typing import Any

import pytest

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec import presets
from agentmemory_operator.spec.kinds.crds import KINDS, render_crd
from agentmemory_operator.spec.kinds.parse import find_errors, parse_agent_memory
from agentmemory_operator.spec.presets import IMPORTANCE
from tests.support.spec.golden import ManifestCase, load_cases, manifest
from tests.support.spec.plans import with_changes


@pytest.mark.parametrize("case", load_cases("by_preset.yaml"), ids=lambda case: case.name)
def test_error_names_the_field(case: ManifestCase) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse_agent_memory(case.document)

    assert [word for word in case.words if word not in str(error.value)] == [], str(error.value)
    assert case.words[0] in [found.field for found in find_errors(case.document)]


def test_crd_contains_no_preset_figures() -> None:
    """An older CRD and a newer operator therefore agree."""
    rules = json.dumps([render_crd(kind) for kind in KINDS])

    assert "self.preset" not in rules
    assert "self.index.profile" not in rules


def test_error_of_the_crd_is_not_repeated() -> None:
    (error,) = find_errors(manifest(index={"hnsw": {"m": 32, "efConstruct": 31}}))

    assert error.field == "spec.index.hnsw.efConstruct"


def with_status(effective: object, revision: object, **spec: Any) -> dict[str, Any]:
    return manifest(**spec) | {"status": {"effective": {"preset": effective, "presetRevision": revision}}}


@pytest.fixture
def _narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release a revision of `importance` whose efConstruct is smaller than the m of `GRAPH`."""
    newest = with_changes(IMPORTANCE, revision=IMPORTANCE.revision + 1, ef_construct=IMPORTANCE.hnsw.ef_construct - 1)
    monkeypatch.setitem(presets.PRESETS, "importance", (IMPORTANCE, newest))


GRAPH = {"hnsw": {"m": IMPORTANCE.hnsw.ef_construct}}


@pytest.mark.usefixtures("_narrower")
def test_object_is_checked_against_its_revision() -> None:
    """If the newest revision were checked, an upgrade of the operator would reject an unchanged object."""
    served = with_status("importance", IMPORTANCE.revision, preset="importance", index=GRAPH)

    assert parse_agent_memory(served).spec.preset == "importance"
    with pytest.raises(SpecInvalid, match="efConstruct must be at least m"):
        parse_agent_memory(manifest(preset="importance", index=GRAPH))


@pytest.mark.usefixtures("_narrower")
def test_revision_of_another_preset_is_ignored() -> None:
    with pytest.raises(SpecInvalid, match="efConstruct must be at least m"):
        parse_agent_memory(with_status("cortex", IMPORTANCE.revision, preset="importance", index=GRAPH))


def test_preset_of_the_status_applies_without_one() -> None:
    spec_fields = {"scoring": {"priority": {"halfLifeDays": 3}}}

    assert parse_agent_memory(with_status("cognitive", 1, **spec_fields)).spec.preset is None
    # A preset without a revision was only requested: the default is in force.
    for preset, revision in (("cortex", 1), ("cognitive", None)):
        with pytest.raises(SpecInvalid, match="choose model Priority"):
            parse_agent_memory(with_status(preset, revision, **spec_fields))


@pytest.mark.parametrize("preset", [None, 7, [], {}, "tomorrow"])
@pytest.mark.parametrize("revision", [None, "1", [], -1])
def test_invalid_status_is_ignored(preset: object, revision: object) -> None:
    assert parse_agent_memory(with_status(preset, revision)).slug == "probe"
    assert parse_agent_memory(manifest() | {"status": {"effective": [preset]}}).slug == "probe"


def test_unknown_preset_is_the_only_error() -> None:
    (error,) = find_errors(manifest(preset="tomorrow", scoring={"priority": {"halfLifeDays": 3}}))

    assert error.field == "spec.preset"
