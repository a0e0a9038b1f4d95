"""The page Ask: a question, the memories that rank best, and why; other weights can be tried beside the object's."""

from typing import Any

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

DEFAULT_TOP_K, MAX_TOP_K = 10, 50
# A threshold that no score is below, to find the memories that the object's threshold removes.
LOWEST_THRESHOLD = -1e6
WEIGHTS_TOLERANCE = 5e-4


async def ask(request: Request) -> Response:
    """Show the form, and the results if it has a question. Sliders that differ add a second column of results."""
    view, query = ApiView(request), dict(request.query_params)
    detail = await view.get()
    declared = detail["weights"]
    chosen = read_weights(query) if declared else None
    is_tried = bool(chosen) and any(abs(chosen[name] - declared[name]) > WEIGHTS_TOLERANCE for name in WEIGHTS)
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": view.can(),
        "query": {name: query.get(name, "") for name in ("user_id", "query", "at_time", "type", "top_k")},
        "types": [type_["name"] for type_ in detail["types"]],
        "weights": chosen or declared,
        "declared": declared,
        "patch": render_patch(chosen) if chosen and is_tried else None,
        "columns": [],
    }
    if query.get("user_id") and query.get("query"):
        body = _search_body(query)
        values["columns"].append(await _find(view, "As the object is", body))
        if is_tried:
            values["columns"].append(await _find(view, "With these weights", body | {"weights": chosen}))
            _add_moves(*values["columns"])
        view.record_look(query["user_id"], sum(len(column["rows"]) for column in values["columns"]))
    return render_page(request, "ask.html", values)


def _search_body(query: Json) -> Json:
    top_k = query.get("top_k", "")
    body: Json = {"user_id": query["user_id"], "query": query["query"], "explain": True}
    body["top_k"] = min(int(top_k), MAX_TOP_K) if top_k.isascii() and top_k.isdecimal() else DEFAULT_TOP_K
    if time := to_time(query.get("at_time", "")):
        body["at_time"] = time
    if query.get("type"):
        body["types"] = [query["type"]]
    return body


async def _find(view: ApiView, title: str, body: Json) -> Json:
    """Search, and find what the threshold removed; return one column of the page."""
    try:
        answer = await view.send("POST", "/search", body)
        removed = await _find_removed(view, body, answer) if answer["removed_by_threshold"] else []
    except ApiRefused as refusal:
        return {"title": title, "problem": refusal.document, "rows": [], "legend": [], "removed": [], "answer": None}
    bars, legend = build_bars([*answer["results"], *removed])
    rows = [
        {"memory": memory, "bar": bar, "signals": list_signals(memory["explain"]), "rank": rank, "move": None}
        for rank, (memory, bar) in enumerate(zip([*answer["results"], *removed], bars, strict=True), 1)
    ]
    count = len(answer["results"])
    return {
        "title": title,
        "problem": None,
        "rows": rows[:count],
        "removed": rows[count:],
        "legend": legend,
        "answer": answer,
    }


async def _find_removed(view: ApiView, body: Json, answer: Json) -> list[Json]:
    """Return the memories that the threshold of the score removed from the results, best first."""
    unlimited = await view.send("POST", "/search", body | {"threshold": LOWEST_THRESHOLD})
    kept = {memory["id"] for memory in answer["results"]}
    return [memory for memory in unlimited["results"] if memory["id"] not in kept]


def _add_moves(declared: Json, tried: Json) -> None:
    """Add to each result of the second column by how many ranks it has moved; 'new' if the first does not have it."""
    ranks = {row["memory"]["id"]: row["rank"] for row in declared["rows"]}
    for row in tried["rows"]:
        before = ranks.get(row["memory"]["id"])
        row["move"] = "new" if before is None else before - row["rank"]
