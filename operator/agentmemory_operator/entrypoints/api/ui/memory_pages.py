"""The page of a memory: content, fields, origins, versions and neighbours; and the changes that the caller may make."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.problems import BAD_REQUEST, Problem, ProblemRaised
from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.forms import read_form
from agentmemory_operator.entrypoints.api.ui.pages import agent_url, redirect, render_page
from agentmemory_operator.entrypoints.api.ui.word_diff import diff_words
from agentmemory_operator.entrypoints.api.use_cases import parse_id, services_of
from agentmemory_operator.runtime.tasks import gather_bounded

NEIGHBOURS = 3
MAX_SESSION_MEMORIES = 200
MAX_CHILDREN = 20
MAX_VERSIONS = 100
MAX_DIFFS, MAX_DIFF_CHARS = 20, 50_000
# Memories that one was distilled or merged from, with their text; the ids of the others are listed.
MAX_ORIGINS, MAX_CONCURRENT_READS = 10, 4
# Fields that have a place of their own on the page.
_SHOWN_ELSEWHERE = frozenset(
    {
        *("id", "content", "entities", "connections", "etag", "user_id", "author", "observed_by", "observation_count"),
        *("created_at", "updated_at", "access_count", "last_accessed_at", "supersedes_ids", "source_ids"),
    }
)
_TIMES = frozenset({"superseded_at", "valid_from", "valid_to", "expires_at"})
_LINKS = frozenset({"supersedes", "superseded_by", "parent_id"})
# Fields that a new version takes from the version that it supersedes.
_INHERITED = (
    *("type", "importance", "tags", "session_id", "key", "subject", "category", "knowledge_category", "domain"),
    *("namespace", "zone", "speaker", "role", "parent_id", "event_type", "context", "metadata", "pinned"),
    *("expires_at", "confidence", "decay_rate"),
)


async def show_memory(request: Request) -> Response:
    """Show a memory with its versions, and the memories before and after it in its session.

    Those below it are shown on request: without an index on the parent, Qdrant reads all memories of the user.
    """
    view, query = ApiView(request), request.query_params
    user_id = query.get("user_id", "")
    memory_id = parse_id(request.path_params["id"])
    memory = await view.get(f"/memories/{memory_id}", user_id=user_id)
    history, _ = await view.try_get(f"/memories/{memory_id}/history", user_id=user_id)
    children = await _read_children(view, memory) if query.get("below") else None
    before, after = await _read_neighbours(view, memory)
    origins = await _read_origins(view, memory)
    versions = (history or {}).get("results", [memory])
    # A thread, because comparing texts takes long enough to delay other requests.
    rows = await asyncio.to_thread(list_versions, versions)
    shown = [*rows, *before, *after, *(children or ()), *(found for _, found in origins if found)]
    view.record_look(user_id, len(shown))
    values = {
        "agent": view.agent,
        "can": view.can(),
        "memory": memory,
        "user_id": user_id,
        "fields": list_fields(memory),
        "origins": origins,
        "max_origins": MAX_ORIGINS,
        "logged_user": view.hash_user(user_id),
        "is_cluster": services_of(request).objects.is_cluster,
        "versions": rows,
        "older": len(versions) - len(rows),
        "before": before,
        "after": after,
        "children": children,
        # Repeating a form must not store its text twice.
        "operation": secrets.token_urlsafe(12),
    }
    return render_page(request, "memory.html", values)


async def _read_children(view: ApiView, memory: Json) -> list[Json]:
    path = f"/memories/{memory['id']}/children"
    children: list[Json] = (await view.get(path, user_id=memory["user_id"], limit=MAX_CHILDREN))["results"]
    return children


async def _read_origins(view: ApiView, memory: Json) -> list[tuple[str, Json | None]]:
    """Return the ids of the memories that a memory was distilled or merged from, the first with the memories.

    None stands for a memory that is deleted, or that the caller may not read.
    """
    ids = list(dict.fromkeys([*memory["supersedes_ids"], *memory["source_ids"]]))

    async def read(origin_id: str) -> Json | None:
        found, _ = await view.try_get(f"/memories/{quote(origin_id, safe='')}", user_id=memory["user_id"])
        return found

    found = await gather_bounded(map(read, ids[:MAX_ORIGINS]), concurrency=MAX_CONCURRENT_READS)
    return list(zip_longest(ids, found))


async def _read_neighbours(view: ApiView, memory: Json) -> tuple[list[Json], list[Json]]:
    """Return the memories before and after a memory in its session, oldest first, if it is among the newest of it."""
    if not memory["session_id"]:
        return [], []
    found, _ = await view.try_get(
        "/memories", user_id=memory["user_id"], session_id=memory["session_id"], limit=MAX_SESSION_MEMORIES
    )
    session = list(reversed((found or {}).get("results", [])))
    places = [place for place, other in enumerate(session) if other["id"] == memory["id"]]
    if not places:
        return [], []
    [place] = places
    return session[max(0, place - NEIGHBOURS) : place], session[place + 1 : place + 1 + NEIGHBOURS]


def list_fields(memory: Mapping[str, Any]) -> list[Json]:
    """Return the fields that have a value, with the kind that decides how the page shows them."""
    fields = []
    for name, value in memory.items():
        if name in _SHOWN_ELSEWHERE or value in (None, [], {}, ""):
            continue
        kind = "time" if name in _TIMES else "memory" if name in _LINKS else "list" if isinstance(value, list) else ""
        values = [("no", "yes")[value]] if isinstance(value, bool) else value if isinstance(value, list) else [value]
        fields.append({"name": name.replace("_", " "), "kind": kind, "values": values})
    return fields


def list_versions(versions: Sequence[Json]) -> list[Json]:
    """Return the newest versions of a memory, newest first; the first with the difference from the one before.

    The differences end after `MAX_DIFFS`, or `MAX_DIFF_CHARS` of both texts, which bound the page and its time.
    """
    newest, chars = versions[::-1], 0
    rows: list[Json] = [{"memory": version, "diff": None} for version in newest[:MAX_VERSIONS]]
    for (after, before), row in zip(pairwise(newest), rows[:MAX_DIFFS], strict=False):
        texts = before["content"] or "", after["content"] or ""
        chars += sum(map(len, texts))
        if chars <= MAX_DIFF_CHARS:
            row["diff"] = diff_words(*texts)
    return rows


async def change_memory(request: Request) -> Response:
    """Change a memory as the form says, then show it; after a deletion, show the user's timeline."""
    form, view = await read_form(request), ApiView(request)
    memory_id, user_id = parse_id(request.path_params["id"]), form.get("user_id", "")
    path, query = f"/memories/{memory_id}", {"user_id": user_id}
    # Only the version that the page has shown is changed.
    headers = {"if-match": form["etag"]} if form.get("etag") else {}
    action = form.get("action")
    if action == "delete":
        await view.send("DELETE", path, query=query, headers=headers)
        return redirect(request, agent_url(view.agent, "timeline", user_id=user_id))
    if action == "supersede":
        memory_id = await _supersede(view, memory_id, form)
    elif action in ("pin", "unpin"):
        await view.send("PATCH", path, {"pinned": action == "pin"}, query=query, headers=headers)
    elif action == "importance":
        await view.send("PATCH", path, {"importance": _number(form)}, query=query, headers=headers)
    else:
        raise ProblemRaised(Problem(type=BAD_REQUEST, detail="the form names no change of a memory"))
    return redirect(request, agent_url(view.agent, f"memories/{memory_id}", user_id=user_id))


async def _supersede(view: ApiView, memory_id: str, form: Mapping[str, str]) -> str:
    """Store a new version with the text of the form; return its id."""
    old = await view.get(f"/memories/{memory_id}", user_id=form.get("user_id", ""))
    body = {name: old[name] for name in _INHERITED if old.get(name) not in (None, [], {}, "")}
    body |= {"user_id": old["user_id"], "content": form.get("content", ""), "supersedes": memory_id}
    headers = {"idempotency-key": form["operation"]} if form.get("operation") else {}
    stored = await view.send("POST", "/memories", body, headers=headers)
    return str(stored["id"])


def _number(form: Mapping[str, str]) -> float | str:
    try:
        return float(form.get("importance", ""))
    except ValueError:
        # The API rejects it, and names the field.
        return form.get("importance", "")
