"""The endpoint for the state of an agent's object. It is rendered from what the operator has written to statuses.

Tenants can write statuses too. So texts and lists are bounded, times are parsed, and no credential or URL of a status
is part of the response.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.agent_objects import AgentObjects
from agentmemory_operator.collections.rules.capacity import CONDITION as NEAR_CAPACITY
from agentmemory_operator.controllers.rules.status_words import (
    Stage,
    approve_command,
    describe_costs,
    describe_locations,
    describe_proof,
    headline,
    is_approvable,
    read_stage,
    start_time,
    summarise_agent,
    undo_command,
)
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.state_schemas import AgentStateOut
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import Forbidden
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, MEMORY_SNAPSHOT
from agentmemory_operator.spec.caller_rights import Caller, scopes_of
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.conditions import find_condition
from agentmemory_operator.spec.times import render_time, time_or_none

Json = dict[str, Any]

MAX_JOBS = 50
NO_STAGE = Stage("")
MAX_MESSAGE_CHARS, MAX_VALUE_CHARS, MAX_COMMAND_CHARS = 2_000, 256, 8_000

router = build_router("Agents", GuardedRoute)


@router.get("/{agent}/state", summary="Read an agent's state", **describe(AgentStateOut, problems=READ_PROBLEMS))
async def get_agent_state(agent: str, request: Request) -> Response:
    """Read the status of the agent's object: conditions, drift, plan, rebuild, snapshots and restores.

    It is served while the agent is not ready, too. Callers that are limited to some users get a 403.
    """
    rights, objects = rights_of(request), services_of(request).objects
    if rights.scopes.users is not None:
        remedy = "use a subject without users in spec.access.subjects"
        raise Forbidden(f"the state is of the whole agent, but {rights.caller} is limited to some users: {remedy}")
    connection = await objects.read_connection_status(rights.settings)
    return json_response(render_state(rights.settings, objects, connection))


def find_state(settings: AgentSettings, objects: AgentObjects, caller: Caller) -> str | None:
    """Return the state of an agent's object in words.

    None if the operator has reported none, or the caller is limited to some users.
    """
    document = objects.find_memory(settings)
    if document is None or scopes_of(caller, settings.subjects).users is not None:
        return None
    return _state(document)


def _state(document: Json) -> str | None:
    if not (document.get("status") or {}).get("conditions"):
        return None
    return _value(summarise_agent(document)[0])


def render_state(settings: AgentSettings, objects: AgentObjects, connection: Mapping[str, Any]) -> Json:
    """Render the JSON of `AgentStateOut`.

    Args:
        connection: Status of the agent's QdrantConnection; empty if it is unknown.
    """
    document = objects.find_memory(settings) or {"metadata": {}}
    status, metadata = document.get("status") or {}, document["metadata"]
    conditions, drift = status.get("conditions"), status.get("drift") or ()
    return {
        "agent": settings.slug,
        "namespace": settings.namespace,
        "name": settings.name,
        "state": _state(document),
        "generation": metadata.get("generation"),
        "observed_generation": status.get("observedGeneration"),
        "deleted_at": _time(metadata.get("deletionTimestamp")),
        "conditions": [_condition(condition) for condition in conditions] if conditions else None,
        "drift": [_drift(difference) for difference in drift] if conditions else None,
        "plan": _plan(status.get("plan")),
        "rebuild": _rebuild(status.get("rebuild")),
        "capacity": _capacity(connection),
        "next_snapshot_at": _time(status.get("nextSnapshotTime")),
        **_jobs(settings, objects),
        "commands": dict(_commands(settings, objects, document)),
    }


def _condition(condition: Json) -> Json:
    return {
        "type": _value(condition["type"]),
        "status": condition["status"],
        "reason": _value(condition["reason"]),
        "message": _message(condition["message"]),
        "since": _time(condition["lastTransitionTime"]),
    }


def _drift(difference: Json) -> Json:
    fields = {"field": "path", "desired": "desired", "observed": "observed"}
    return {name: _value(difference.get(source)) for name, source in fields.items()} | {
        "since": _time(difference.get("since"))
    }


def _plan(plan: Json | None) -> Json | None:
    if not plan:
        return None
    sources = {"change_class": "class", "current": "from", "desired": "to"}
    names = ("change", "change_class", "field", "current", "desired", "cost")
    changes = [
        {name: _value(change.get(sources.get(name, name))) for name in names} | {"held": bool(change.get("held"))}
        for change in plan.get("changes") or ()
    ]
    costs = describe_costs(plan.get("costs") or {})
    return {
        "digest": _value(plan.get("digest")),
        "reason": _message(plan.get("refusal")),
        "costs": _message(costs or None),
        "changes": changes,
    }


def _rebuild(rebuild: Json | None) -> Json | None:
    if not rebuild:
        return None
    return {
        "kind": _value(rebuild.get("kind")),
        "state": _value(rebuild.get("state")),
        "summary": _value(headline(rebuild)),
        "message": _message(rebuild.get("message")),
        "copied": rebuild.get("copied"),
        "total": rebuild.get("total"),
        "source": _value(rebuild.get("source")),
        "target": _value(rebuild.get("target")),
        "started_at": _time(rebuild.get("startTime")),
        "moved_at": _time(rebuild.get("moveTime")),
        "ended_at": _time(rebuild.get("endTime")),
    }


def _capacity(connection: Mapping[str, Any]) -> Json | None:
    """Render the capacity in shares only: the connection may be of another team, whose numbers are its own."""
    condition, capacity = find_condition(connection, NEAR_CAPACITY), connection.get("capacity") or {}
    if not condition and not capacity:
        return None
    return {
        "reason": _value(condition.get("reason")),
        "memory_maps": _share(capacity.get("memoryMaps")),
        "open_files": _share(capacity.get("openFiles")),
        "estimated": bool(capacity.get("isEstimated")),
    }


def _share(load: Json | None) -> float | None:
    return None if load is None else round(load["used"] / load["limit"], 2)


def _jobs(settings: AgentSettings, objects: AgentObjects) -> Json:
    """Render the newest snapshots and restores, and the newest snapshot that is proven."""
    snapshots, restores = (objects.list_jobs(settings, kind) for kind in (MEMORY_SNAPSHOT, MEMORY_RESTORE))
    for documents in (snapshots or [], restores or []):
        documents.sort(key=lambda document: (start_time(document), document["metadata"]["name"]), reverse=True)
    proven = next(filter(_is_proven, snapshots or ()), None)
    return {
        "last_proven": proven and _snapshot(proven),
        "snapshots": None if snapshots is None else [_snapshot(each) for each in snapshots[:MAX_JOBS]],
        "snapshots_total": None if snapshots is None else len(snapshots),
        "restores": None if restores is None else [_restore(each) for each in restores[:MAX_JOBS]],
        "restores_total": None if restores is None else len(restores),
    }


def _is_proven(snapshot: Json) -> bool | None:
    """Return whether the verification of a complete snapshot succeeded; None if that is not known."""
    status = snapshot.get("status") or {}
    if find_condition(status, "Succeeded").get("status") != "True":
        return None
    return {"True": True, "False": False}.get(find_condition(status, "Verified").get("status", ""))


def _snapshot(document: Json) -> Json:
    status, proven = document.get("status") or {}, _is_proven(document)
    verified = find_condition(status, "Verified")
    job = _job(document, verified if proven is not None else {})
    return job | {
        "points": (status.get("points") or {}).get("after"),
        "proven": proven,
        "proven_at": _time(verified.get("lastTransitionTime")) if proven else None,
        "proof": _value(describe_proof(document)),
        "size_bytes": status.get("sizeBytes"),
        "where": _value(describe_locations(status)),
        "qdrant_version": _value(status.get("qdrantVersion")),
    }


def _restore(document: Json) -> Json:
    status, spec = document.get("status") or {}, document.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    return _job(document, {}) | {
        "mode": _value(spec.get("mode")) or "Swap",
        "source": _value(_source(spec.get("source"))),
        "points": (status.get("points") or {}).get("after"),
        "rolled_back_at": _time(status.get("rolledBackTime")),
        "previous_until": _time((status.get("previousCollection") or {}).get("until")),
    }


def _source(source: object) -> str | None:
    """Describe what is restored. Of a URL only that it is one: it may contain a signature."""
    match source:
        case {"snapshotRef": {"name": name}}:
            return f"snapshot {name}"
        case {"s3": {"bucket": bucket}}:
            return f"s3://{bucket}"
        case {"url": _}:
            return "a URL"
    return None


def _job(document: Json, deciding: Mapping[str, Any]) -> Json:
    """Render what snapshots and restores have in common.

    Args:
        deciding: Condition that explains the state; empty for that of the phase.
    """
    status = document.get("status") or {}
    progressing, succeeded = find_condition(status, "Progressing"), find_condition(status, "Succeeded")
    phase = {"True": "Succeeded", "False": "Failed"}.get(succeeded.get("status", ""), "Running")
    if progressing.get("status") == "True":
        # A complete snapshot is being verified, or a restore is rolled back.
        phase = "Running"
    deciding = progressing if phase == "Running" else deciding or succeeded
    stage = read_stage(document) if phase == "Running" else NO_STAGE
    return {
        "name": _value(document["metadata"]["name"]),
        "phase": phase,
        "reason": _value(deciding.get("reason")),
        "message": _message(deciding.get("message")),
        "progress": _value(stage.text) or None,
        "done": stage.done if stage.total else None,
        "total": stage.total or None,
        "started_at": _time(start_time(document)),
        "ended_at": _time(status.get("endTime")),
    }


def _commands(settings: AgentSettings, objects: AgentObjects, document: Json) -> Iterator[tuple[str, str]]:
    program = "kubectl agentmemory" if objects.is_cluster else "agentmemory"
    target = f"{settings.name} -n {settings.namespace}"
    if objects.is_cluster:
        found = {"approve": approve_command(document, "kubectl"), "undo": undo_command(document, "kubectl")}
        yield from ((name, text) for name, text in found.items() if text and len(text) <= MAX_COMMAND_CHARS)
    elif is_approvable(document):
        yield "approve", f"{program} approve {target}"
    yield "status", f"{program} status {target}"
    yield "snapshots", f"{program} snapshot list {target}"
    yield "snapshot", f"{program} snapshot create {target} --wait"
    yield "restore", f"{program} restore {target} --from SNAPSHOT --wait"


def _message(text: object) -> str | None:
    return _cut(text, MAX_MESSAGE_CHARS)


def _value(text: object) -> str | None:
    return _cut(text, MAX_VALUE_CHARS)


def _cut(text: object, most: int) -> str | None:
    """Return the start of a text, without lone surrogates, which no JSON may contain; None for any other value."""
    if not isinstance(text, str):
        return None
    start = text if len(text) <= most else f"{text[: most - 1]}…"
    return start.encode("utf-8", "replace").decode()


def _time(value: object) -> str | None:
    time_ms = time_or_none(value)
    return None if time_ms is None else render_time(time_ms)
