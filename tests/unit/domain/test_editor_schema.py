"""The schema for editors: takes every good manifest, refuses what it can see, leaves other kinds alone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentmemory_operator.domain.editor_schema import editor_schema
from tests.support.json_schema import problems
from tests.support.manifests import ManifestCase, load_cases, manifest

SCHEMA = editor_schema()


def keys_of(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
        for child in node.values():
            yield from keys_of(child)
    if isinstance(node, list):
        for child in node:
            yield from keys_of(child)


def without_nulls(node: Any) -> Any:
    """Return the document as the API server keeps it; an editor may point at a null, which says nothing."""
    if isinstance(node, dict):
        return {name: without_nulls(child) for name, child in node.items() if child is not None}
    return [without_nulls(child) for child in node] if isinstance(node, list) else node


@pytest.mark.parametrize("case", load_cases("good.yaml"), ids=lambda case: case.name)
def test_a_good_manifest_passes(case: ManifestCase) -> None:
    assert list(problems(SCHEMA, without_nulls(case.document))) == []


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        (manifest(nonsense=1), ".spec.nonsense"),
        (manifest(preset="cortxe"), ".spec.preset"),
        (manifest(index={"hnsw": {"m": 1}}), ".spec.index.hnsw.m"),
        (manifest(scoring={"candidates": True}), ".spec.scoring.candidates"),
        (manifest("QdrantConnection", url=7), ".spec.url"),
        (manifest() | {"apiVersion": "agentmemory.dev/v1"}, ".apiVersion"),
        ({"apiVersion": "agentmemory.dev/v1alpha1", "kind": "AgentMemory"}, ".spec"),
    ],
)
def test_what_an_editor_can_see_is_refused(document: dict[str, Any], refused: str) -> None:
    assert refused in list(problems(SCHEMA, document))


def test_other_kinds_in_the_same_file_pass() -> None:
    assert list(problems(SCHEMA, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})) == []


def test_it_is_json_without_what_only_kubernetes_understands() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert [key for key in keys_of(SCHEMA) if key.startswith("x-")] == []
