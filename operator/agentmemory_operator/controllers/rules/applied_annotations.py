"""Predict the annotations of an object after a manifest is applied to it. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_FIELD = "f:"


def with_kept_annotations(manifest: Json, live: Json) -> dict[str, Any]:
    """Return the manifest plus the annotations that applying it keeps, for example the approval set by a command.

    Annotations that were applied earlier and are no longer in the manifest are removed.
    """
    metadata, live_annotations = manifest["metadata"], live["metadata"].get("annotations") or {}
    removed = _last_applied(live_annotations) | _applied_alone(live["metadata"].get("managedFields") or ())
    rest = {name: value for name, value in live_annotations.items() if name not in removed and name != LAST_APPLIED}
    return {**manifest, "metadata": {**metadata, "annotations": rest | (metadata.get("annotations") or {})}}


def _last_applied(annotations: Json) -> set[str]:
    """Return the names of the annotations in the manifest of the last client-side apply; empty if it has none."""
    try:
        return set(json.loads(annotations.get(LAST_APPLIED, "{}"))["metadata"]["annotations"])
    except (KeyError, TypeError, ValueError):
        return set()


def _applied_alone(managers: Any) -> set[str]:
    """Return the names of the annotations that only server-side applies have set."""
    applied, updated = set[str](), set[str]()
    for entry in managers:
        (applied if entry.get("operation") == "Apply" else updated).update(_annotations_of(entry))
    return applied - updated


def _annotations_of(entry: Json) -> Iterator[str]:
    fields = (entry.get("fieldsV1") or {}).get(f"{_FIELD}metadata") or {}
    for name in fields.get(f"{_FIELD}annotations") or {}:
        if name.startswith(_FIELD):
            yield name.removeprefix(_FIELD)
