"""Generated files under `crds/` and in the chart, and the JSON Schema for editors."""

import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from agentmemory_operator.entrypoints.cli.install.crds import main, render_files
from agentmemory_operator.spec.kinds.crds import KINDS, editor_schema
from tests.support.spec.golden import LOADER, ManifestCase, load_cases, manifest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@cache
def rendered() -> dict[pathlib.Path, str]:
    return dict(render_files(ROOT))


def test_generated_files_are_current() -> None:
    stale = [path for path, text in rendered().items() if not path.is_file() or path.read_text() != text]

    assert [str(path.relative_to(ROOT)) for path in stale] == [], "run `make crds` and commit what it writes"


def test_folders_contain_only_generated_files() -> None:
    assert {found for path in rendered() for found in path.parent.iterdir()} == rendered().keys()


def test_main_prints_all_crds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    printed = list(yaml.load_all(capsys.readouterr().out, Loader=LOADER))
    assert [crd["spec"]["names"]["kind"] for crd in printed] == [kind.name for kind in KINDS]


def test_write_creates_both_folders(tmp_path: pathlib.Path) -> None:
    assert main(["--write", "--root", str(tmp_path)]) == 0

    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.yaml")} == {
        path.relative_to(ROOT) for path in rendered()
    }


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}

SCHEMA = editor_schema()


def problems(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which the schema rejects the value."""
    for case in schema.get("allOf", ()):
        if not list(problems(case["if"], value)):
            yield from problems(case["then"], value, path)
    if not _is_of(schema.get("type"), value) or not _fits(schema, value):
        yield path or "object"
    if isinstance(value, dict):
        yield from _of_object(schema, value, path)
    if isinstance(value, list):
        for number, child in enumerate(value):
            yield from problems(schema.get("items", {}), child, f"{path}[{number}]")


def _of_object(schema: Mapping[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name}" for name in schema.get("required", ()) if name not in value)
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, child in value.items():
        node = known.get(name, rest)
        if isinstance(node, Mapping):
            yield from problems(node, child, f"{path}.{name}")
        elif not node:
            yield f"{path}.{name}"


def _is_of(types: str | list[str] | None, value: Any) -> bool:
    names = [types] if isinstance(types, str) else types
    if names is None:
        return True
    return any(isinstance(value, TYPES[name]) and (name == "boolean") == isinstance(value, bool) for name in names)


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    if value not in schema.get("enum", [value]) or schema.get("const", value) != value:
        return False
    if isinstance(value, str):
        fits = re.search(schema.get("pattern", ""), value) is not None
        return fits and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    return True


def keys_of(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
        for child in node.values():
            yield from keys_of(child)
    if isinstance(node, list):
        for child in node:
            yield from keys_of(child)


def without_nulls(node: Any) -> Any:
    """Return the document without nulls, as the API server stores it."""
    if isinstance(node, dict):
        return {name: without_nulls(child) for name, child in node.items() if child is not None}
    return [without_nulls(child) for child in node] if isinstance(node, list) else node


@pytest.mark.parametrize("case", load_cases("good.yaml"), ids=lambda case: case.name)
def test_good_manifest_passes(case: ManifestCase) -> None:
    assert list(problems(SCHEMA, without_nulls(case.document))) == []


@pytest.mark.parametrize(
    ("document", "path_of_error"),
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
def test_bad_manifest_is_rejected_with_its_field(document: dict[str, Any], path_of_error: str) -> None:
    assert path_of_error in list(problems(SCHEMA, document))


def test_other_kinds_pass() -> None:
    assert list(problems(SCHEMA, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})) == []


def test_schema_is_json_without_kubernetes_extensions() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert [key for key in keys_of(SCHEMA) if key.startswith("x-")] == []
