"""Add the examples of `examples.yaml`, and the answers recorded for them, to the OpenAPI document.

`tests.support.web.examples` sends the requests to a development stack and records the answers.
"""

import json
from importlib.resources import files
from typing import Any

import yaml

Json = dict[str, Any]

_FOLDER = files("agentmemory_operator.entrypoints.api")
REQUESTS, ANSWERS = _FOLDER / "examples.yaml", _FOLDER / "example_answers.json"


def read_requests() -> Json:
    """Read the example requests: `operations` by operation id, and `problems` by status."""
    requests: Json = yaml.safe_load(REQUESTS.read_text())
    return requests


def add_examples(document: Json) -> None:
    """Add the example of each operation and error that has one.

    A client that is generated from the document does not depend on them.
    """
    requests, answers = read_requests(), json.loads(ANSWERS.read_text())
    for methods in document["paths"].values():
        for operation in methods.values():
            name = operation["operationId"]
            _add_request(operation, requests["operations"].get(name, {}))
            if name in answers["operations"]:
                _add_answer(operation, answers["operations"][name])
    for name, response in document["components"].get("responses", {}).items():
        if name in answers["problems"]:
            _set_example(response, answers["problems"][name])


def render_body(media_type: str, body: Any) -> Any:
    """Return the example of a body: a value for JSON, one line of text for lines of JSON."""
    return body if media_type == "application/json" else json.dumps(body, ensure_ascii=False)


def _add_request(operation: Json, request: Json) -> None:
    values = request.get("parameters", {})
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in values:
            parameter["example"] = values[parameter["name"]]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        if "body" in request:
            content["example"] = render_body(media_type, request["body"])


def _add_answer(operation: Json, answer: Any) -> None:
    for status, response in operation["responses"].items():
        if status.startswith("2") and "content" in response:
            _set_example(response, answer)


def _set_example(response: Json, answer: Any) -> None:
    for content in response["content"].values():
        content["example"] = answer
