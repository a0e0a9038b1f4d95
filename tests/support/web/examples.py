"""Send the examples of the OpenAPI document to a development stack: `python -m tests.support.web.examples` records."""

import contextlib
import json
import pathlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import yaml

from agentmemory_operator.entrypoints.api.examples import ANSWERS, read_requests, render_body
from agentmemory_operator.webhooks.rules.events import decode_key, sign
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, copy_quickstart, running

AGENTS = ("support-bot", "team", "analyst")
MANIFESTS = ("quickstart/20-support-bot.yaml", "brain/memory.yaml", "cognitive/memory.yaml")
HOOK_KEY = "whsec_QSBrZXkgdGhhdCBldmVyeWJvZHkgY2FuIHJlYWQgaXMgbm8ga2V5"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "crm-hook", "namespace": "agents"},
    "stringData": {"key": HOOK_KEY},
}
# Lines of metrics and tools to show: the complete answers are long.
MAX_METRIC_LINES, MAX_TOOLS = 3, 1


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends example requests as the page `/docs` does.

    Attributes:
        document: The OpenAPI document of the API.
    """

    client: httpx.Client
    document: dict[str, Any]

    def send(self, name: str, request: dict[str, Any]) -> httpx.Response:
        """Send the request of an example to the operation with the id `name`."""
        path, method, operation = find_operation(self.document, name)
        places = {parameter["name"]: parameter["in"] for parameter in operation.get("parameters", ())}
        values: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
        for parameter, value in request.get("parameters", {}).items():
            values[places[parameter]][parameter] = value
        headers, content = values["header"], None
        if "body" in request:
            media_type = next(iter(operation["requestBody"]["content"]))
            body = render_body(media_type, request["body"])
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            headers |= {"content-type": media_type} | (_signature(content) if name == "receiveHook" else {})
        url = path.format(**values["path"])
        return self.client.request(method, url, params=values["query"], headers=headers, content=content)


def find_operation(document: dict[str, Any], name: str) -> tuple[str, str, dict[str, Any]]:
    """Return the path, the method and the description of an operation. Raise KeyError if there is none of the name."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] == name:
                return path, method, operation
    raise KeyError(name)


@contextlib.contextmanager
def example_sender(folder: pathlib.Path) -> Iterator[Sender]:
    """Start `agentmemory dev` with the agents of the examples, support-bot with a hook; yield a sender to it."""
    manifests = copy_quickstart(folder / "manifests")
    agents = [_find_agent(ROOT / "examples" / name) for name in MANIFESTS]
    agents[0]["spec"]["hooks"] = [{"name": "crm", "secretRef": {"name": "crm-hook", "key": "key"}}]
    for document, name in zip((*agents, SECRET), ("20-support-bot", "team", "analyst", "secret"), strict=True):
        (manifests / f"{name}.yaml").write_text(yaml.safe_dump(document))
    options = ("--manifests", str(manifests), "--data", str(folder / "data"), "--port", "0")
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(running(Program(folder / "log", *AGENTMEMORY, "dev", *options)))
        url = program.wait_for(r"API (http://\S+)")[1]
        client = stack.enter_context(httpx.Client(base_url=url, timeout=30))
        wait_until(lambda: _ready_agents(client) == set(AGENTS), seconds=60, what="the agents")
        yield Sender(client, client.get("/openapi.json").json())


def answer_of(response: httpx.Response) -> Any:
    """Return the body of a response as its example shows it: text, or the value of JSON; without a usable token."""
    if response.headers.get("content-type", "").startswith("text/plain"):
        return "".join(response.text.splitlines(keepends=True)[:MAX_METRIC_LINES])
    if "ndjson" in response.headers.get("content-type", ""):
        return response.text
    answer = response.json()
    if "tools" in answer:
        answer["tools"] = answer["tools"][:MAX_TOOLS]
    if "token" in answer:
        answer["token"] = answer["token"][:14] + "…"
    return answer


def _find_agent(path: pathlib.Path) -> dict[str, Any]:
    documents = yaml.safe_load_all(path.read_text())
    return next(document for document in documents if document["kind"] == "AgentMemory")


def _ready_agents(client: httpx.Client) -> set[str]:
    answer = client.get("/v1/agents")
    agents = answer.json()["results"] if answer.is_success else []
    # Until the operator has reported a state, an example would lack it.
    return {agent["agent"] for agent in agents if agent["ready"] and agent["state"]}


def _signature(body: bytes) -> dict[str, str]:
    key, now_s = decode_key(HOOK_KEY), str(int(time.time()))
    assert key is not None
    return {"webhook-id": "crm-1", "webhook-timestamp": now_s, "webhook-signature": sign(key, "crm-1", now_s, body)}


def _record(sender: Sender) -> dict[str, Any]:
    requests = read_requests()
    operations = {}
    for name, request in requests["operations"].items():
        if name == "listChanges":
            # The change log contains a write only a moment after the response.
            wait_until(lambda: sender.send("listChanges", request).json()["results"], seconds=30)  # noqa: B023
        response = sender.send(name, request).raise_for_status()
        if response.content:
            operations[name] = answer_of(response)
    problems = {
        f"Error{status}": sender.send(request["operation"], request).json()
        for status, request in requests["problems"].items()
    }
    return {"operations": operations, "problems": problems}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, example_sender(pathlib.Path(folder)) as running_sender:
        recorded = _record(running_sender)
    pathlib.Path(str(ANSWERS)).write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
