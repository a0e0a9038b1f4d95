"""Examples of the OpenAPI document: a development stack answers each prefilled request like the recorded answer."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from agentmemory_operator.entrypoints.api.examples import ANSWERS, read_requests
from tests.api.test_openapi import OPERATIONS
from tests.support.web.examples import Sender, answer_of, example_sender, find_operation

REQUESTS = read_requests()
RECORDED = json.loads(ANSWERS.read_text())
NAMES = list(REQUESTS["operations"])


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    with example_sender(tmp_path_factory.mktemp("examples")) as sender:
        yield sender


@pytest.fixture(scope="module")
def responses(sender: Sender) -> dict[str, httpx.Response]:
    """Responses to all examples, by operation id: each was sent after those before it."""
    return {name: sender.send(name, request) for name, request in REQUESTS["operations"].items()}


def content_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the described content of a response, without media types that have no schema."""
    contents: list[dict[str, Any]] = [one for one in response.get("content", {}).values() if one.get("schema")]
    return contents[0] if contents else {}


def success_of(operation: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    [(status, response)] = [entry for entry in operation["responses"].items() if entry[0].startswith("2")]
    return int(status), content_of(response)


def validate(sender: Sender, schema: dict[str, Any], answer: Any) -> None:
    jsonschema.Draft202012Validator(schema | {"components": sender.document["components"]}).validate(answer)


def keys_of(answer: Any) -> Any:
    """Return the keys of an answer with those of each object in it; of a list, those of its first item."""
    if isinstance(answer, dict):
        return {key: keys_of(value) for key, value in answer.items()}
    return [keys_of(answer[0])] if isinstance(answer, list) and answer else type(answer).__name__


def lines_of(answer: Any) -> list[Any]:
    return [json.loads(line) for line in answer.splitlines()]


def test_every_operation_has_an_example() -> None:
    described = {name for methods in OPERATIONS.values() for name in methods.values()}

    assert set(NAMES) == described
    assert set(RECORDED["operations"]) == described - {"deleteMemory", "deleteItem"}


@pytest.mark.parametrize("name", NAMES)
def test_prefilled_request_succeeds(sender: Sender, responses: dict[str, httpx.Response], name: str) -> None:
    status, content = success_of(find_operation(sender.document, name)[2])
    answer = responses[name]

    assert answer.status_code == status, answer.text
    if content and "schema" in content and not isinstance(answer_of(answer), str):
        validate(sender, content["schema"], answer.json())


@pytest.mark.parametrize("name", RECORDED["operations"])
def test_recorded_answer_has_the_keys_of_a_real_one(
    sender: Sender, responses: dict[str, httpx.Response], name: str
) -> None:
    _, content = success_of(find_operation(sender.document, name)[2])
    shown, real = content["example"], answer_of(responses[name])

    assert shown == RECORDED["operations"][name]
    if name == "exportUserMemories":
        shown, real = lines_of(shown), lines_of(real)
    if name == "listChanges":
        # The log contains a write only a moment later, so the results may be empty.
        assert set(real) == set(shown)
    else:
        # Which resources of a server have a limit depends on the machine.
        machine = {"capacity": None} if name == "getAgentState" else {}
        assert keys_of(real | machine if machine else real) == keys_of(shown | machine if machine else shown)
    if not isinstance(shown, str) and name != "exportUserMemories":
        validate(sender, content["schema"], shown)


@pytest.mark.parametrize("name", NAMES)
def test_page_prefills_the_example(sender: Sender, name: str) -> None:
    operation, request = find_operation(sender.document, name)[2], REQUESTS["operations"][name]

    given = {parameter["name"]: parameter.get("example") for parameter in operation.get("parameters", ())}
    assert {name: value for name, value in given.items() if value is not None} == request.get("parameters", {})
    missing = [one["name"] for one in operation.get("parameters", ()) if one.get("required") and "example" not in one]
    assert missing == []
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        # A page sends a text as it is, and other values as indented JSON, which is no line of an import.
        shown = content["example"] if media_type == "application/json" else json.loads(content["example"])
        assert shown == request["body"]
        validate(sender, content["schema"], shown)


@pytest.mark.usefixtures("responses")
@pytest.mark.parametrize("status", REQUESTS["problems"])
def test_refused_request_gets_the_shown_error(sender: Sender, status: int) -> None:
    request = REQUESTS["problems"][status]
    shown = content_of(sender.document["components"]["responses"][f"Error{status}"])["example"]

    answer = sender.send(request["operation"], request)

    assert answer.status_code == status
    generated = {"request_id": "", "etag": ""}
    assert answer.json() | generated == shown | generated
