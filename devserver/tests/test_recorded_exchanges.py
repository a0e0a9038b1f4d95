"""Exchanges recorded from a real server have the same responses here."""

import functools
import json
import math
import pathlib
from typing import Any

import pytest

from tests.support.web.qdrant_nodes import DevServer

RECORDED = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "qdrant_http.json"
SCENARIOS = {scenario["name"]: scenario["steps"] for scenario in json.loads(RECORDED.read_text())["scenarios"]}
# Times, counters and values that depend on the machine.
VARYING = {
    "time",
    "operation_id",
    "version",
    "commit",
    "segments_count",
    "indexed_vectors_count",
    "peer_id",
    "warnings",
}

pytestmark = pytest.mark.usefixtures("emptied")


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_scenario_has_same_responses(server: DevServer, name: str) -> None:
    wrong, captured = [], {"self": server.url}
    for number, step in enumerate(SCENARIOS[name], 1):
        status, answer = send(server, step, captured)
        if found := differences(step, status, answer):
            wrong.append(f"step {number} {step['call']}: {found}")
    assert not wrong, "\n".join(wrong)


def send(server: DevServer, step: dict[str, Any], captured: dict[str, str]) -> tuple[int, Any]:
    method, path = substitute(step["call"], captured).split(" ", 1)
    body = substitute(json.dumps(step["body"]), captured).encode() if "body" in step else None
    content = step["raw"].encode() if "raw" in step else body
    answer = server.http.request(method, path, content=content, headers={"content-type": "application/json"})
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    document = answer.json() if is_json else None
    for name, place in step.get("capture", {}).items():
        captured[name] = functools.reduce(dict.__getitem__, place.split("."), document)
    return answer.status_code, document


def substitute(text: str, captured: dict[str, str]) -> str:
    """Replace `{name}` by the values captured from earlier responses."""
    return functools.reduce(lambda result, item: result.replace(f"{{{item[0]}}}", item[1]), captured.items(), text)


def differences(step: dict[str, Any], status: int, answer: Any) -> str:
    if status != step["status"]:
        return f"status {status}, recorded {step['status']}: {answer}"
    if step.get("loose") or status >= 400:
        return ""
    return first_difference(step["answer"], answer, "")


def first_difference(recorded: Any, actual: Any, path: str) -> str:
    match recorded, actual:
        case dict(), dict():
            keys = sorted((recorded.keys() | actual.keys()) - VARYING)
            found = (first_difference(recorded.get(key), actual.get(key), f"{path}.{key}") for key in keys)
            return next(filter(None, found), "")
        case list(), list() if len(recorded) == len(actual):
            pairs = zip(in_order(recorded), in_order(actual), strict=True)
            found = (first_difference(a, b, f"{path}[{index}]") for index, (a, b) in enumerate(pairs))
            return next(filter(None, found), "")
        case (int() | float(), int() | float()) if not isinstance(recorded, bool) and not isinstance(actual, bool):
            same = math.isclose(recorded, actual, rel_tol=1e-5, abs_tol=1e-6)
        case "yellow", "green":
            # A slow machine has optimized before the next step. test_optimizations.py checks the order of states.
            same = True
        case _:
            same = recorded == actual
    return "" if same else f"{path}: recorded {recorded!r}, seen {actual!r}"


def in_order(items: list[Any]) -> list[Any]:
    """Sort points by score and id, because those with equal scores have no fixed order."""
    if all(isinstance(item, dict) and "score" in item for item in items):
        return sorted(items, key=lambda item: (-round(item["score"], 4), str(item["id"])))
    return items
