"""Which annotations an object keeps when a manifest is applied to it."""

import json
from typing import Any

import pytest

from agentmemory_operator.controllers.rules.applied_annotations import LAST_APPLIED, with_kept_annotations

APPROVAL = {"agentmemory.dev/approve-plan": "d1"}


def kept(*, live: dict[str, Any], manifest: dict[str, str] | None = None) -> dict[str, str]:
    """Return the annotations of what a manifest makes of a live object."""
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


def test_an_approval_by_a_command_stays() -> None:
    assert kept(live={"annotations": APPROVAL}) == APPROVAL
    assert kept(live={}) == {}
    assert kept(live={"annotations": APPROVAL | last_applied({"a": "b"})}, manifest={"a": "c"}) == APPROVAL | {"a": "c"}


def test_what_the_manifest_says_stands_above_the_live_object() -> None:
    (name,) = APPROVAL
    assert kept(live={"annotations": APPROVAL}, manifest={name: "d2"}) == {name: "d2"}


def test_what_was_applied_and_is_left_out_now_goes() -> None:
    assert kept(live={"annotations": APPROVAL | last_applied(APPROVAL)}) == {}
    assert kept(live={"annotations": APPROVAL, "managedFields": [managed("Apply", *APPROVAL)]}) == {}


def test_what_somebody_has_set_beside_an_apply_stays() -> None:
    managers = [managed("Apply", *APPROVAL), managed("Update", *APPROVAL)]
    assert kept(live={"annotations": APPROVAL, "managedFields": managers}) == APPROVAL


@pytest.mark.parametrize(
    "broken",
    [{LAST_APPLIED: "{"}, {LAST_APPLIED: "[]"}, {LAST_APPLIED: "{}"}, last_applied(None)],
)
def test_what_cannot_be_read_of_an_apply_takes_nothing_away(broken: dict[str, str]) -> None:
    empty: list[dict[str, Any]] = [{}, {"fieldsV1": {}}, {"fieldsV1": {"f:metadata": {}}}]
    managers = [{"operation": "Apply"} | entry for entry in empty]
    assert kept(live={"annotations": APPROVAL | broken, "managedFields": managers}) == APPROVAL
