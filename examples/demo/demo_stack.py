"""What the demo works with: the development stack as a process, and clients of its two HTTP surfaces."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

AGENT = "support-bot"
ALIAS = f"agent_memory_{AGENT}"
START_S, STOP_S, REQUEST_S = 60.0, 20.0, 30.0

Json = dict[str, Any]
T = TypeVar("T")


class Unmet(Exception):
    """Something is not as the demo expects it."""


def expect(what: str, *, expected: object, seen: object, is_met: bool | None = None) -> None:
    """Raise Unmet unless `seen` equals `expected`, or `is_met` where equality is not the question."""
    if not (seen == expected if is_met is None else is_met):
        raise Unmet(f"{what}\n  expected: {expected}\n  seen:     {seen}")


def wait_for(poll: Callable[[], T | None], *, what: str, limit_s: float) -> T:
    """Return the first answer of `poll` that counts as true."""
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        if answer := poll():
            return answer
        time.sleep(0.01)
    raise Unmet(f"{what}\n  expected: within {limit_s:.0f} s\n  seen:     not yet")


@dataclass(frozen=True, slots=True)
class Api:
    """The retrieval API, as a client sees it."""

    http: httpx.Client

    def is_ready(self) -> bool:
        """Tell whether it serves the agent."""
        if not self.http.get("/readyz").is_success:
            return False
        agents = self._answer(self.http.get("/v1/agents"))["results"]
        return any(agent["agent"] == AGENT and agent["ready"] for agent in agents)

    def agent(self) -> Json:
        """Return the agent: weights and thresholds in force, their generation, how many memories."""
        return self._answer(self.http.get(f"/v1/agents/{AGENT}"))

    def store(self, memory: Json) -> Json:
        """Store one memory."""
        return self._answer(self.http.post(f"/v1/agents/{AGENT}/memories", json=memory))

    def store_batch(self, memories: list[Json]) -> list[Json]:
        """Store up to 1,000 memories; each is answered by itself, in their order."""
        answer = self._answer(self.http.post(f"/v1/agents/{AGENT}/memories/batch", json={"memories": memories}))
        return list(answer["results"])

    def memories(self, user_id: str) -> list[Json]:
        """Return a user's memories, superseded ones too but none that has expired, page by page."""
        found: list[Json] = []
        params: dict[str, Any] = {"user_id": user_id, "include_superseded": True, "limit": 100}
        while True:
            page = self._answer(self.http.get(f"/v1/agents/{AGENT}/memories", params=params))
            found += page["results"]
            if not page["next_cursor"]:
                return found
            params["cursor"] = page["next_cursor"]

    def search(self, user_id: str, query: str, *, top_k: int, explain: bool = False) -> Json:
        """Return the memories of a user that rank best for a query."""
        body = {"user_id": user_id, "query": query, "top_k": top_k, "explain": explain}
        return self._answer(self.http.post(f"/v1/agents/{AGENT}/search", json=body))

    def refused(self, question: Json) -> Json:
        """Ask what cannot be answered; return the problem that is told instead."""
        body = {"user_id": question["user_id"], "query": question["query"]}
        return dict(self.http.post(f"/v1/agents/{AGENT}/search", json=body).json())

    def _answer(self, response: httpx.Response) -> Json:
        request = f"{response.request.method} {response.request.url.path}"
        expect(request, expected="2xx", seen=f"{response.status_code} {response.text}", is_met=response.is_success)
        return dict(response.json())


@dataclass(frozen=True, slots=True)
class Qdrant:
    """What lies below the API, as Qdrant itself tells it."""

    http: httpx.Client

    def collection(self) -> Json:
        """Return the agent's collection."""
        return self._result(f"/collections/{ALIAS}")

    def physical(self) -> str | None:
        """Return the name of the collection that the agent's alias points at."""
        aliases = self._result("/aliases")["aliases"]
        return next((item["collection_name"] for item in aliases if item["alias_name"] == ALIAS), None)

    def delete(self, collection: str) -> None:
        """Delete a collection."""
        self.http.delete(f"/collections/{collection}").raise_for_status()

    def _result(self, path: str) -> Json:
        return dict(self.http.get(path).raise_for_status().json()["result"])


@dataclass(slots=True)
class Stack:
    """`agentmemory dev` as a process of its own: dev Qdrant, reconcile of a folder of manifests, API.

    Attributes:
        folder: holds everything: manifests, data, log.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def manifests(self) -> Path:
        """Return the folder that it watches."""
        return self.folder / "manifests"

    @property
    def log(self) -> Path:
        """Return the file with its log."""
        return self.folder / "stack.log"

    def ready(self) -> Json:
        """Return the object's condition Ready, from the status beside the manifests; the API may serve just before."""

        def written() -> Json | None:
            conditions = self.status("AgentMemory", AGENT).get("conditions", [])
            return next((condition for condition in conditions if condition["type"] == "Ready"), None)

        return wait_for(written, what=f"the status of {AGENT} is written", limit_s=START_S)

    def status(self, kind: str, name: str) -> Json:
        """Return an object's status, from the file beside the manifests; empty before there is one."""
        path = self.manifests / ".status" / f"agents.{name}.{kind.lower()}.json"
        return dict(json.loads(path.read_text("utf-8"))["status"]) if path.is_file() else {}

    def start(self) -> tuple[Api, Qdrant]:
        """Start it on free ports; return once it serves the agent."""
        said = self.folder / "stack.out"
        command = [sys.executable, "-m", "agentmemory_operator", "dev", "-v", "--port", "0"]
        command += ["--manifests", str(self.manifests), "--data", str(self.folder / "data")]
        with said.open("wb") as out, self.log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches the demo alone, which then ends it.
            self.process = subprocess.Popen(
                command, env=own_environment(), stdout=out, stderr=log, start_new_session=True
            )
        urls = wait_for(lambda: self._urls(said.read_text()), what="the stack prints its URLs", limit_s=START_S)
        api, qdrant = Api(client(urls["API"])), Qdrant(client(urls["Qdrant"]))
        wait_for(api.is_ready, what=f"the API serves {AGENT}", limit_s=START_S)
        return api, qdrant

    def _urls(self, said: str) -> dict[str, str] | None:
        if self.process and self.process.poll() is not None:
            raise Unmet(f"the stack ended with exit status {self.process.returncode} before it was ready")
        urls = dict(re.findall(r"^(API|Qdrant) (http://\S+)$", said, re.MULTILINE))
        return urls if len(urls) == 2 else None

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        if self.process:
            self.process.terminate()
            expect("exit status of the stack", expected=0, seen=self.process.wait(STOP_S))

    def kill(self) -> None:
        """End it at once: it gets no chance to write anything."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def client(url: str) -> httpx.Client:
    """Return a client of a URL on this machine, which no proxy stands before."""
    return httpx.Client(base_url=url, timeout=REQUEST_S, trust_env=False)


def at(document: Json, path: str) -> object:
    """Return the value at a dotted path; None where there is none."""
    value: Any = document
    for key in path.split("."):
        value = (value or {}).get(key)
    return value


def own_environment() -> dict[str, str]:
    """Return this environment without what would point the stack at the user's servers and keys."""
    foreign = ("AGENTMEMORY_", "QDRANT_", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # Nor is a proxy to stand before the dev Qdrant.
    return kept | {"AGENTMEMORY_AUTH": "none", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
