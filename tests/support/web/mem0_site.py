"""Agents with mem0's dialects, and a client of their routes."""

from typing import Any

import httpx

from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from tests.support.spec.documents import ALL_PASS, memory_document

EMBEDDING = {"provider": "wordllama", "dimensions": 64}
OPEN = memory_document("mem0-open", preset="standard", embedding=EMBEDDING, scoring=ALL_PASS)
SUBJECTS = [
    {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": verbs, **more}
    for name, verbs, more in (
        ("chief", ["read", "write", "admin", "delegate"], {}),
        ("writer", ["read", "write"], {}),
        ("bound", ["read", "write", "admin"], {"users": ["ada", "bob"]}),
    )
]
GUARDED = memory_document(
    "mem0-guarded", preset="standard", embedding=EMBEDDING, scoring=ALL_PASS, access={"subjects": SUBJECTS}
)


class NamedTokens:
    """Accepts the tokens `token-NAME`."""

    async def review(self, token: str) -> TokenReviewResult:
        if not token.startswith("token-"):
            return TokenReviewResult(refusal="the token is not valid")
        return TokenReviewResult(caller=Caller("agents", token.removeprefix("token-")))


class Mem0Site:
    """Client of one agent's mem0 dialects, and of its native routes."""

    def __init__(self, http: httpx.Client, agent: str) -> None:
        self.http, self.agent = http, agent

    def call(self, method: str, path: str, *, key: str = "any", **arguments: Any) -> httpx.Response:
        """Send a request as mem0's client does."""
        headers = {"Authorization": f"Token {key}"} | arguments.pop("headers", {})
        return self.http.request(method, f"/mem0/{self.agent}{path}", headers=headers, **arguments)

    def native(self, method: str, path: str, *, key: str = "any", **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return self.http.request(method, f"/v1/agents/{self.agent}{path}", headers=headers, **arguments)

    def add(self, text: str, user: str, *, key: str = "any", **more: Any) -> str:
        """Store a text as it is; return the id."""
        body = {"messages": text, "user_id": user, "infer": False} | more
        answer = self.call("POST", "/v3/memories/add/", key=key, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["results"][0]["id"])

    def texts(self, filters: Any, **more: Any) -> list[str]:
        """List the texts of memories that meet filters, sorted."""
        answer = self.call("POST", "/v3/memories/", json={"filters": filters}, **more)
        assert answer.status_code == 200, answer.text
        return sorted(memory["memory"] for memory in answer.json()["results"])
