"""Annotations that an object keeps when a manifest is applied."""

import json
from typing import Any

import pytest

from agentmemory_operator.controllers.rules.applied_annotations import LAST_APPLIED, with_kept_annotations

APPROVAL = {"agentmemory.dev/approve-plan": "d1"}


def apply(*, live: dict[str, Any], manifest: dict[str, str] | None = None) -> dict[str, str]:
    """Return the annotations after applying a manifest to a live object."""
    metadata = {"name": "bot"} | ({} if manifest is None else {"annotations": manifest})
    applied = with_kept_annotations({"kind": "AgentMemory", "metadata": metadata}, {"metadata": live})
    assert applied["kind"] == "AgentMemory"
    assert applied["metadata"]["name"] == "bot"
    found: dict[str, str] = applied["metadata"]["annotations"]
    return found


def last_applied(annotations: Any) -> dict[str, str]:
    return {LAST_APPLIED: json.dumps({"metadata": {"annotations": annotations}})}


def managed(operation: str, *names: str) -> dict[str, Any]:
    fields = {"f:metadata": {"f:annotations": {".": {}, **{f"f:{name}": {} for name in names}}}}
    return {"manager": "somebody", "operation": operation, "fieldsV1": fields}


def test_command_annotation_stays() -> None:
    assert apply(live={"annotations": APPROVAL}) == APPROVAL
    assert apply(live={}) == {}
    assert apply(live={"annotations": APPROVAL | last_applied({"a": "b"})}, manifest={"a": "c"}) == APPROVAL | {
        "a": "c"
    }


def test_manifest_overrides_live_value() -> None:
    (name,) = APPROVAL
    assert apply(live={"annotations": APPROVAL}, manifest={name: "d2"}) == {name: "d2"}


def test_omitted_applied_annotation_is_removed() -> None:
    assert apply(live={"annotations": APPROVAL | last_applied(APPROVAL)}) == {}
    assert apply(live={"annotations": APPROVAL, "managedFields": [managed("Apply", *APPROVAL)]}) == {}


def test_annotation_updated_elsewhere_stays() -> None:
    managers = [managed("Apply", *APPROVAL), managed("Update", *APPROVAL)]
    assert apply(live={"annotations": APPROVAL, "managedFields": managers}) == APPROVAL


@pytest.mark.parametrize(
    "broken",
    [{LAST_APPLIED: "{"}, {LAST_APPLIED: "[]"}, {LAST_APPLIED: "{}"}, last_applied(None)],
)
def test_unreadable_apply_record_removes_nothing(broken: dict[str, str]) -> None:
    empty: list[dict[str, Any]] = [{}, {"fieldsV1": {}}, {"fieldsV1": {"f:metadata": {}}}]
    managers = [{"operation": "Apply"} | entry for entry in empty]
    assert apply(live={"annotations": APPROVAL | broken, "managedFields": managers}) == APPROVAL
