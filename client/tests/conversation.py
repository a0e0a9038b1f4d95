"""A sequence of most API calls, recorded once for each API version and replayed by the tests. To record:

agentmemory dev --manifests examples/quickstart --port 8080
python -m client.tests.conversation client/tests/answers/0.1.json
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from agentmemory_client import DEFAULT_URL, ApiError, Client

AGENT, USER = "support-bot", "recorded"
KEPT_HEADERS = ("content-type", "x-agentmemory-version")


def talk(client: Client) -> dict[str, Any]:
    """Make every call in order, then erase the user; return the result of each call by name, or its ApiError."""
    agent, answers = client.agent(AGENT), dict[str, Any]()
    for name, call in _calls(client, answers):
        try:
            answers[name] = call()
        except ApiError as error:
            answers[name] = error
    agent.forget_everything(USER)
    return answers


def _calls(client: Client, answers: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    agent, user, home = client.agent(AGENT), client.agent(AGENT).user(USER), ("memories", USER)
    yield "agents", client.agents
    yield "info", agent.info
    yield "add", lambda: user.add("Pays by card", type="preference", importance="high", tags=["billing"])
    yield "supersede", lambda: user.add("Pays by invoice", type="preference", supersedes=answers["add"].id)
    yield (
        "add_many",
        lambda: agent.add_many([{"user_id": USER, "content": "Lives in Ghent"}, {"user_id": "", "content": "x"}]),
    )
    yield "search", lambda: user.search("how does she pay?", explain=True)
    yield "page", lambda: user.page(limit=1)
    yield "memories", lambda: list(user.memories(limit=1))
    yield "get", lambda: user.get(answers["supersede"].id)
    yield "change", lambda: user.change(answers["supersede"].id, tags=["billing", "invoice"])
    yield "history", lambda: user.history(answers["supersede"].id)
    yield "tree", lambda: user.tree(answers["supersede"].id)
    yield "stats", user.stats
    yield "put_item", lambda: agent.put_item(home, "blue", key="colour")
    yield "get_item", lambda: agent.get_item(home, "colour")
    yield "keys", lambda: list(agent.keys(home))
    yield "namespaces", lambda: agent.namespaces(home)
    yield "users", lambda: list(agent.users())
    yield "export", lambda: list(user.export())
    yield "would_forget", user.would_forget_everything
    yield "forget", user.forget_everything
    yield "receipts", lambda: list(agent.receipts(user_id=USER))


class Recording(httpx.BaseTransport):
    """Transport that forwards requests and records the responses."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self._http = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._http.handle_request(request)
        body = answer.read().decode()
        headers = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
        self.answers.append({"status": answer.status_code, "headers": headers, "body": body})
        return httpx.Response(answer.status_code, headers=headers, content=body)


class Replaying(httpx.BaseTransport):
    """Transport that returns recorded responses in order."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.left = list(answers)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the next recorded response, for any request."""
        answer = self.left.pop(0)
        return httpx.Response(answer["status"], headers=answer["headers"], content=answer["body"])


def client_over(transport: httpx.BaseTransport) -> Client:
    """Return a client that sends its requests through a transport."""
    client = Client(os.environ.get("AGENTMEMORY_URL", DEFAULT_URL), retries=0)
    client.http = httpx.Client(base_url=client.connection.url, transport=transport)
    return client


if __name__ == "__main__":
    recording = Recording()
    with client_over(recording) as recorded:
        talk(recorded)
    Path(sys.argv[1]).write_text(json.dumps(recording.answers, indent=1) + "\n")
