"""Render an AgentMemory for `agentmemory status`: conditions, held plan, collection, optionally all settings."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentmemory_operator.controllers.rules.status_words import (
    approve_command,
    headline,
    is_approvable,
    summarise_agent,
    undo_command,
)
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.tables import Section

Json = Mapping[str, Any]

CONDITION_COLUMNS = ("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")
AGENT_COLUMNS = ("NAME", "NAMESPACE", "READY", "SYNCED", "REASON", "MEMORIES", "LAST-SNAPSHOT")
# Parts of the status that have a section of their own, or repeat other parts.
SECTIONED_FIELDS = {"conditions", "collection", "effective", "plan", "scoring", "lastSnapshot", "rebuild"}
VERIFIED = {True: "verified", False: "not verified", None: "verification unknown"}
PLAN_COLUMNS = ("CLASS", "CHANGE", "COST", "HELD")
# The status has no time of the count, because writing it would make each pass over an idle object a write.
COUNT_AGE = ", counted at the operator's last pass (about every 5 minutes)"


def status_document(document: Json) -> dict[str, Any]:
    """Render the object as JSON, without its spec and most of its metadata."""
    metadata = document["metadata"]
    fields = ("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp")
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {name: metadata[name] for name in fields if name in metadata},
        "status": document.get("status") or {},
    }


def status_sections(
    document: Json, *, options: str = "", kubectl: str | None = "kubectl", is_full: bool = False
) -> list[Section]:
    """Render the status of an AgentMemory. Sections that may need a decision are first.

    Args:
        options: Text to append to other commands, so that they refer to the object.
        kubectl: kubectl command with options for the object's cluster; None if there is no cluster.
        is_full: True to include the settings in effect.
    """
    status = document.get("status") or {}
    sections = [_conditions(document, status), _plan(document, status, options, kubectl)]
    sections += [_collection(document, status)]
    sections += [_rebuild(document, status), _snapshots(status), *_others(status)]
    if is_full:
        sections.append(_figures(status))
    return [section for section in sections if section is not None]


def agents_section(documents: Sequence[Json]) -> Section:
    """Render AgentMemory objects as a table, with the columns of `kubectl get amem`."""
    rows = tuple(_agent_row(document) for document in documents)
    if not rows:
        return Section(f"No AgentMemory found. `{called_as()} init NAME` writes one; -A searches all namespaces.")
    return Section("", columns=AGENT_COLUMNS, rows=rows)


def _agent_row(document: Json) -> tuple[str, ...]:
    status, metadata = document.get("status") or {}, document["metadata"]
    conditions = status.get("conditions") or []
    states = {item["type"]: item["status"] for item in conditions}
    reasons = (item["reason"] for item in conditions if item["status"] == "False")
    cells = (
        *(states.get("Ready"), states.get("InSync"), next(reasons, None)),
        *((status.get("collection") or {}).get("memories"), (status.get("lastSnapshot") or {}).get("time")),
    )
    return (metadata["name"], metadata["namespace"], *("-" if cell is None else str(cell) for cell in cells))


def _conditions(document: Json, status: Json) -> Section:
    """Render all conditions. A message of several conditions is printed once; later ones refer to it."""
    metadata, (state, mood) = document["metadata"], summarise_agent(document)
    first_types: dict[str, str] = {}
    rows = []
    for item in status.get("conditions") or []:
        first_type = first_types.setdefault(item["message"], item["type"])
        message = item["message"] if first_type == item["type"] else f"as {first_type}"
        rows.append((item["type"], item["status"], item["reason"], item["lastTransitionTime"], message))
    heading = f"AgentMemory {metadata['namespace']}/{metadata['name']}: {state}"
    return Section(heading, mood, columns=CONDITION_COLUMNS if rows else (), rows=tuple(rows))


def _collection(document: Json, status: Json) -> Section | None:
    metadata, collection = document["metadata"], status.get("collection") or {}
    memories = collection.get("memories")
    rows = {
        "agent": status.get("agent"),
        "alias": collection.get("alias"),
        "physical": collection.get("physical"),
        "memories": None if memories is None else f"{memories}{COUNT_AGE}",
        "indexed": collection.get("indexed"),
        "state": collection.get("state"),
        "replicas": _replicas(collection.get("replicas") or {}),
        "generation": metadata.get("generation"),
        "acted on": status.get("observedGeneration"),
        "deleted at": metadata.get("deletionTimestamp"),
    }
    present = tuple((name, str(value)) for name, value in rows.items() if value is not None)
    return Section("Collection", rows=present) if present else None


def _replicas(replicas: Json) -> str | None:
    """Summarise the replicas in one line; None for a single server."""
    if not replicas:
        return None
    required = replicas.get("wanted")
    parts = [f"{replicas['active']}{f' of {required}' if required else ''} active, {replicas['shards']} shards"]
    parts += [f"on {replicas['peers']} peers"]
    parts += [f"copying {replicas['copying']}"] if replicas.get("copying") else []
    return ", ".join([*parts, *filter(None, [replicas.get("inactive")])])


def _rebuild(document: Json, status: Json) -> Section | None:
    """Summarise the last rebuild; None if there was none. A message that a condition repeats is omitted."""
    rebuild, metadata = status.get("rebuild"), document["metadata"]
    if not rebuild:
        return None
    message = "" if _is_reported(status, rebuild.get("message")) else rebuild.get("message")
    rows = {"stands": headline(rebuild), "from": rebuild.get("source"), "into": rebuild.get("target"), "said": message}
    present = tuple((name, value) for name, value in rows.items() if value)
    command = f"more: {called_as()} rebuild {metadata['name']} -n {metadata['namespace']}"
    return Section(str(rebuild.get("kind", "Rebuild")), "", rows=present, commands=(command,))


def _snapshots(status: Json) -> Section | None:
    """Render last and next snapshot, and the conditions SnapshotFresh and SnapshotVerified; None without any."""
    last, states = status.get("lastSnapshot"), {item["type"]: item for item in status.get("conditions") or []}
    rows = {
        "last": _last_snapshot(last) if last else None,
        "next": status.get("nextSnapshotTime"),
        "fresh": _condition_summary(states.get("SnapshotFresh")),
        "verified": _condition_summary(states.get("SnapshotVerified")),
    }
    present = tuple((name, value) for name, value in rows.items() if value is not None)
    return Section("Snapshots", rows=present) if present else None


def _last_snapshot(last: Json) -> str:
    parts = [last.get("time"), last.get("name"), VERIFIED[last.get("verified")]]
    return ", ".join(
        [*(str(item) for item in parts if item), f"taken by Qdrant {last.get('qdrantVersion', 'unknown')}"]
    )


def _condition_summary(state: Json | None) -> str | None:
    if state is None:
        return None
    text = {"True": "yes", "False": "no"}.get(state["status"], "not known")
    return text if text == "yes" else f"{text} ({state['reason']})"


def _figures(status: Json) -> Section | None:
    rows = tuple(flat(status.get("effective") or {}))
    return Section("Effective settings", rows=rows) if rows else None


def _others(status: Json) -> Iterator[Section]:
    """Yield a section for each other part of the status: lists as tables, other values with dotted names."""
    for name, value in status.items():
        if name in SECTIONED_FIELDS or not isinstance(value, list | dict) or not value:
            continue
        if isinstance(value, list):
            columns = tuple(dict.fromkeys(key for entry in value for key in entry))
            rows = tuple(tuple(_text(entry.get(column, "-")) for column in columns) for entry in value)
            yield Section(heading_of(name), columns=tuple(map(str.upper, columns)), rows=rows)
        else:
            yield Section(heading_of(name), rows=tuple(flat(value)))


def heading_of(name: str) -> str:
    """Convert a field name to a heading: `foreignOwner` to `Foreign owner`."""
    return re.sub(r"(?<!^)([A-Z])", lambda match: f" {match[1].lower()}", name).capitalize()


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a document as pairs of dotted path and text."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from flat(child, f"{path}.{name}" if path else name)
    else:
        yield path, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _plan(document: Json, status: Json, options: str, kubectl: str | None) -> Section | None:
    plan = status.get("plan")
    if not plan:
        return None
    rows = change_rows(plan.get("changes") or [])
    notes = () if _is_reported(status, plan.get("refusal")) else (plan["refusal"],)
    commands = tuple(_plan_commands(document, options, kubectl))
    return Section(f"Plan {plan.get('digest')}", "busy", PLAN_COLUMNS, rows, notes=notes, commands=commands)


def _is_reported(status: Json, text: str | None) -> bool:
    """Return whether the text is empty or the message of a condition."""
    return not text or any(item["message"] == text for item in status.get("conditions") or [])


def change_rows(changes: Iterable[Json]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a plan's changes, with the columns of `PLAN_COLUMNS`."""
    names = ("class", "change", "cost")
    return tuple(
        (*(change.get(name, "-") for name in names), "yes" if change.get("held") else "no") for change in changes
    )


def _plan_commands(document: Json, options: str, kubectl: str | None) -> Iterator[str]:
    """Yield the commands that approve held changes, and that undo them if there is a cluster."""
    approval = approve_command(document, kubectl) if kubectl else None
    if kubectl is None and is_approvable(document):
        approval = f"{called_as()} approve {document['metadata']['name']}{options}"
    if approval:
        yield f"approve: {approval}"
    if kubectl and (undoing := undo_command(document, kubectl)):
        yield f"undo: {undoing}"
