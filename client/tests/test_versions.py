"""The client against its own, an earlier and a later API version, by replaying recorded responses."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from agentmemory_client import ApiError, SearchResult, Stored
from client.tests.conversation import Replaying, client_over, talk

ANSWERS = Path(__file__).parent / "answers"
OWN = "0.1"
# A call and a field that the earlier version lacks.
NOT_BEFORE, FIELD = {"users"}, "updated_at"
TO_COME = {"a_field_to_come": {"of": ["its", "own"]}}


def recorded(version: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads((ANSWERS / f"{version}.json").read_text())
    return answers


def replay(answers: list[dict[str, Any]]) -> dict[str, Any]:
    transport = Replaying(answers)
    with client_over(transport) as client:
        results = talk(client)
    assert transport.left == []
    return results


def errors(results: dict[str, Any]) -> set[str]:
    return {name for name, result in results.items() if isinstance(result, ApiError)}


def grown(document: Any) -> Any:
    """Return a document as a later API may send it: a new field in each object, and a new event."""
    if isinstance(document, list):
        return [grown(part) for part in document]
    if not isinstance(document, dict):
        return document
    return {name: "ANOTHER" if name == "event" else grown(part) for name, part in document.items()} | TO_COME


def later(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["headers"]["content-type"].startswith("application/json"):
        return answer
    headers = answer["headers"] | {"x-agentmemory-version": "0.2.0"}
    return answer | {"body": json.dumps(grown(json.loads(answer["body"]))), "headers": headers}


def shrunk(document: Any) -> Any:
    """Return a document as an earlier API sent it, without `FIELD`."""
    if isinstance(document, list):
        return [shrunk(part) for part in document]
    if not isinstance(document, dict):
        return document
    return {name: shrunk(part) for name, part in document.items() if name != FIELD}


def earlier(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a response as the earlier version sends it; 404 for a list of users."""
    if not answer["headers"]["content-type"].startswith("application/json"):
        return answer
    document = json.loads(answer["body"])
    if any("memories" in row and "oldest" in row for row in document.get("results", ())):
        problem = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no such path"}
        return {"status": 404, "headers": {"content-type": "application/problem+json"}, "body": json.dumps(problem)}
    return answer | {"body": json.dumps(shrunk(document))}


def test_own_version_has_no_unknown_fields() -> None:
    results = replay(recorded(OWN))

    assert errors(results) == set()
    assert isinstance(results["search"], SearchResult)
    assert [memory.content for memory in results["history"]] == ["Pays by card", "Pays by invoice"]
    for name, result in results.items():
        for value in result if isinstance(result, list | tuple) else [result]:
            if is_dataclass(value):
                extra = value.extra  # type: ignore[attr-defined] # every response has it
                assert extra == {}, f"{name}: {type(value).__name__} has no field for {sorted(extra)}"


def test_earlier_version_lacks_only_new_features() -> None:
    results = replay([earlier(answer) for answer in recorded(OWN)])

    assert errors(results) == NOT_BEFORE
    assert results["users"].status == 404
    assert isinstance(results["add"], Stored)
    assert results["search"].results[0].updated_at is None
    assert replay(recorded(OWN))["search"].results[0].updated_at is not None


def test_new_fields_and_events_are_kept() -> None:
    results = replay([later(answer) for answer in recorded(OWN)])

    assert errors(results) == set()
    assert results["add"].event == "ANOTHER"
    for name in ("add", "search", "get", "stats", "put_item", "forget"):
        assert results[name].extra == TO_COME
    assert results["search"].results[0].extra == TO_COME


def test_api_version_is_read_from_responses() -> None:
    with client_over(Replaying(recorded(OWN))) as client:
        assert client.api_version is None
        client.agents()

    assert client.api_version == "0.1.0"


def test_recordings_contain_no_local_paths() -> None:
    assert "/home" not in (text := (ANSWERS / f"{OWN}.json").read_text())
    assert "/work" not in text


def test_repr_of_values_omits_extra() -> None:
    for result in replay(recorded(OWN)).values():
        if is_dataclass(result):
            assert {part.name for part in fields(result)} >= {"extra"}
            assert "extra" not in repr(result)
