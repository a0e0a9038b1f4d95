"""What only the figures of a preset or a profile make wrong: refused here, and by no definition in the cluster."""

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
def test_it_is_refused_by_name_of_the_field(case: ManifestCase) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_agent_memory(case.document)

    assert [word for word in case.words if word not in str(caught.value)] == [], str(caught.value)
    assert case.words[0] in [error.field for error in find_errors(case.document)]


def test_no_definition_knows_a_preset_s_figures() -> None:
    """An older definition and a newer operator judge alike."""
    rules = json.dumps([render_crd(kind) for kind in KINDS])

    assert "self.preset" not in rules
    assert "self.index.profile" not in rules


def test_what_a_rule_of_the_definition_says_is_not_said_again() -> None:
    (error,) = find_errors(manifest(index={"hnsw": {"m": 32, "efConstruct": 31}}))

    assert error.field == "spec.index.hnsw.efConstruct"


def with_status(effective: object, revision: object, **spec: Any) -> dict[str, Any]:
    return manifest(**spec) | {"status": {"effective": {"preset": effective, "presetRevision": revision}}}


@pytest.fixture
def _narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose newest revision of `importance` has a graph that the m of `GRAPH` does not go with."""
    newest = with_changes(IMPORTANCE, revision=IMPORTANCE.revision + 1, ef_construct=IMPORTANCE.hnsw.ef_construct - 1)
    monkeypatch.setitem(presets.PRESETS, "importance", (IMPORTANCE, newest))


GRAPH = {"hnsw": {"m": IMPORTANCE.hnsw.ef_construct}}


@pytest.mark.usefixtures("_narrower")
def test_what_serves_is_judged_by_the_revision_that_it_has() -> None:
    """Or an upgrade of the operator would refuse an object that nobody touched."""
    served = with_status("importance", IMPORTANCE.revision, preset="importance", index=GRAPH)

    assert parse_agent_memory(served).spec.preset == "importance"
    with pytest.raises(SpecInvalid, match="efConstruct must be at least m"):
        parse_agent_memory(manifest(preset="importance", index=GRAPH))


@pytest.mark.usefixtures("_narrower")
def test_another_preset_s_revision_says_nothing() -> None:
    with pytest.raises(SpecInvalid, match="efConstruct must be at least m"):
        parse_agent_memory(with_status("cortex", IMPORTANCE.revision, preset="importance", index=GRAPH))


def test_an_object_without_a_preset_is_judged_by_the_one_that_its_status_has() -> None:
    wanted = {"scoring": {"priority": {"halfLifeDays": 3}}}

    assert parse_agent_memory(with_status("cognitive", 1, **wanted)).spec.preset is None
    with pytest.raises(SpecInvalid, match="choose model Priority"):
        parse_agent_memory(with_status("cortex", 1, **wanted))


@pytest.mark.parametrize("preset", [None, 7, [], {}, "tomorrow"])
@pytest.mark.parametrize("revision", [None, "1", [], -1])
def test_a_status_may_have_anything(preset: object, revision: object) -> None:
    assert parse_agent_memory(with_status(preset, revision)).slug == "probe"
    assert parse_agent_memory(manifest() | {"status": {"effective": [preset]}}).slug == "probe"


def test_of_a_preset_that_there_is_not_nothing_more_is_said() -> None:
    (error,) = find_errors(manifest(preset="tomorrow", scoring={"priority": {"halfLifeDays": 3}}))

    assert error.field == "spec.preset"
