"""The page Ask: a question, the memories that rank best, and why; other weights can be tried beside the object's."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused, ApiView, Json
from agentmemory_operator.entrypoints.api.ui.pages import render_page, to_time
from agentmemory_operator.entrypoints.api.ui.score_bars import (
    WEIGHTS,
    build_bars,
    list_signals,
    read_weights,
    render_patch,
)
from agentmemory_operator.runtime.tasks import gather_bounded

DEFAULT_TOP_K, MAX_TOP_K = 10, 50
# Memories that results supersede, which take a request each.
MAX_REPLACED, MAX_CONCURRENT_READS = 10, 4
# A threshold that no score is below, to find the memories that the object's threshold removes.
LOWEST_THRESHOLD = -1e6
WEIGHTS_TOLERANCE = 5e-4


async def ask(request: Request) -> Response:
    """Show the form, and the results if it has a question. Sliders that differ add a second column of results."""
    view, query = ApiView(request), dict(request.query_params)
    detail = await view.get()
    declared = detail["weights"]
    chosen = read_weights(query) if declared else None
    is_tried = chosen is not None and any(abs(chosen[name] - declared[name]) > WEIGHTS_TOLERANCE for name in WEIGHTS)
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": view.can(),
        "query": {name: query.get(name, "") for name in ("user_id", "query", "type", "top_k")} | split_time(query),
        "types": [type_["name"] for type_ in detail["types"]],
        "weights": chosen or declared,
        "declared": declared,
        "patch": render_patch(chosen) if chosen and is_tried else None,
        "columns": [],
    }
    if query.get("user_id") and query.get("query"):
        body = _search_body(query)
        values["columns"].append(await _find(view, "With the object's weights", body, detail))
        if is_tried:
            values["columns"].append(await _find(view, "With these weights", body | {"weights": chosen}, detail))
            _add_moves(*values["columns"])
        rows = [row for column in values["columns"] for row in (*column["rows"], *column["removed"])]
        replaced = await _add_replaced(view, rows)
        view.record_look(query["user_id"], len(rows) + replaced)
    return render_page(request, "ask.html", values)


def split_time(query: Mapping[str, str]) -> dict[str, str]:
    """Return date and time of the fields 'As of'. A time of day without a date counts as none.

    `at_time` may also have both, as links to the page do.
    """
    day, _, clock = query.get("at_time", "").partition("T")
    return {"at_time": day, "at_clock": (clock or query.get("at_clock", "")) if day else ""}


def _search_body(query: Json) -> Json:
    top_k = query.get("top_k", "")
    body: Json = {"user_id": query["user_id"], "query": query["query"], "explain": True}
    # Python converts no number of more than 4,300 digits.
    body["top_k"] = min(int(top_k[:9]), MAX_TOP_K) if top_k.isascii() and top_k.isdecimal() else DEFAULT_TOP_K
    if time := to_time("T".join(filter(None, split_time(query).values()))):
        body["at_time"] = time
    if query.get("type"):
        body["types"] = [query["type"]]
    return body


async def _find(view: ApiView, title: str, body: Json, settings: Json) -> Json:
    """Search, and find what the thresholds removed; return one column of the page."""
    try:
        answer = await view.send("POST", "/search", body)
    except ApiRefused as refusal:
        return {"title": title, "problem": refusal.document, "rows": [], "legend": [], "removed": [], "answer": None}
    found = answer["results"]
    removed = await _find_removed(view, body, answer) if len(found) < body["top_k"] else []
    bars, legend = build_bars([*found, *removed], settings)
    rows = [
        {"memory": memory, "bar": bar, "signals": list_signals(memory["explain"]), "rank": rank}
        | {"move": None, "replaced": None}
        for rank, (memory, bar) in enumerate(zip([*found, *removed], bars, strict=True), 1)
    ]
    for row in rows[len(found) :]:
        is_dissimilar = row["memory"]["explain"]["fused"] < (answer["min_similarity"] or -1)
        row |= {"rank": None, "removed_by": "minimum similarity" if is_dissimilar else "score threshold"}
    columns = {"rows": rows[: len(found)], "removed": rows[len(found) :], "legend": legend}
    hints = [warning for warning in answer["warnings"] if ": no index on " in warning]
    columns |= {"hints": hints, "warnings": [warning for warning in answer["warnings"] if warning not in hints]}
    return {"title": title, "problem": None, "answer": answer} | columns


async def _add_replaced(view: ApiView, rows: Sequence[Json]) -> int:
    """Add to results the memory that each supersedes, which no search finds; return how many memories were read.

    Only the first `MAX_REPLACED` are read. None stands for a memory that the caller may not read.
    """
    ids = {row["memory"]["supersedes"]: row["memory"]["user_id"] for row in rows if row["memory"]["supersedes"]}

    async def read(id_: str, user_id: str) -> Json | None:
        found, _ = await view.try_get(f"/memories/{quote(id_, safe='')}", user_id=user_id)
        return found

    wanted = list(ids.items())[:MAX_REPLACED]
    found = await gather_bounded((read(*pair) for pair in wanted), concurrency=MAX_CONCURRENT_READS)
    by_id = {memory["id"]: memory for memory in found if memory}
    for row in rows:
        row["replaced"] = by_id.get(row["memory"]["supersedes"])
    return len(by_id)


async def _find_removed(view: ApiView, body: Json, answer: Json) -> list[Json]:
    """Return the memories that the thresholds removed from the results, best first.

    If the object does not allow another minimum similarity, it returns those below the threshold of the score only.
    """
    kept = {memory["id"] for memory in answer["results"]}
    for without in ({"threshold": LOWEST_THRESHOLD, "min_similarity": -1}, {"threshold": LOWEST_THRESHOLD}):
        try:
            unlimited = await view.send("POST", "/search", body | without)
        except ApiRefused as refusal:
            if refusal.status != 422:
                raise
            continue
        return [memory for memory in unlimited["results"] if memory["id"] not in kept]
    return []


def _add_moves(declared: Json, tried: Json) -> None:
    """Add to each result of the second column by how many ranks it has moved; 'new' if the first does not have it."""
    ranks = {row["memory"]["id"]: row["rank"] for row in declared["rows"]}
    for row in tried["rows"]:
        before = ranks.get(row["memory"]["id"])
        row["move"] = "new" if before is None else before - row["rank"]
