"""What an object is once a manifest was applied to it. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_FIELD = "f:"


def with_kept_annotations(manifest: Json, live: Json) -> dict[str, Any]:
    """The manifest with those annotations of the live object that its apply leaves, as an approval given by a command.

    What was applied before and is no more in the manifest goes.
    """
    metadata, there = manifest["metadata"], live["metadata"].get("annotations") or {}
    removed = _last_applied(there) | _applied_alone(live["metadata"].get("managedFields") or ())
    kept = {name: value for name, value in there.items() if name not in removed and name != LAST_APPLIED}
    return {**manifest, "metadata": {**metadata, "annotations": kept | (metadata.get("annotations") or {})}}


def _last_applied(annotations: Json) -> set[str]:
    """The annotations of the manifest that a client applied last."""
    try:
        return set(json.loads(annotations.get(LAST_APPLIED, "{}"))["metadata"]["annotations"])
    except (KeyError, TypeError, ValueError):
        return set()


def _applied_alone(managers: Any) -> set[str]:
    """The annotations that the server applied for somebody, and that nobody has set otherwise."""
    applied, updated = set[str](), set[str]()
    for entry in managers:
        (applied if entry.get("operation") == "Apply" else updated).update(_annotations_of(entry))
    return applied - updated


def _annotations_of(entry: Json) -> Iterator[str]:
    fields = (entry.get("fieldsV1") or {}).get(f"{_FIELD}metadata") or {}
    for name in fields.get(f"{_FIELD}annotations") or {}:
        if name.startswith(_FIELD):
            yield name.removeprefix(_FIELD)
