"""The development stack of the demo as a process, and clients of its two HTTP APIs."""

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


class ExpectationFailed(Exception):
    """Raised if a result of the demo is not the expected one."""


def expect(description: str, *, expected: object, seen: object, is_met: bool | None = None) -> None:
    """Raise ExpectationFailed unless `seen` equals `expected`; if `is_met` is given, unless it is true."""
    if not (seen == expected if is_met is None else is_met):
        raise ExpectationFailed(f"{description}\n  expected: {expected}\n  seen:     {seen}")


def wait_for(poll: Callable[[], T | None], *, description: str, limit_s: float) -> T:
    """Poll until a result is truthy, and return it. Raise ExpectationFailed after `limit_s`."""
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        if answer := poll():
            return answer
        time.sleep(0.01)
    raise ExpectationFailed(f"{description}\n  expected: within {limit_s:.0f} s\n  seen:     not yet")


@dataclass(frozen=True, slots=True)
class Api:
    """Client of the retrieval API."""

    http: httpx.Client

    def is_ready(self) -> bool:
        """Return whether the API serves the agent."""
        if not self.http.get("/readyz").is_success:
            return False
        agents = self._read_json(self.http.get("/v1/agents"))["results"]
        return any(agent["agent"] == AGENT and agent["ready"] for agent in agents)

    def agent(self) -> Json:
        """Return the agent: its current weights and thresholds, their generation, its number of memories."""
        return self._read_json(self.http.get(f"/v1/agents/{AGENT}"))

    def store(self, memory: Json) -> Json:
        """Store one memory."""
        return self._read_json(self.http.post(f"/v1/agents/{AGENT}/memories", json=memory))

    def store_batch(self, memories: list[Json]) -> list[Json]:
        """Store up to 1,000 memories; return a result for each, in their order."""
        answer = self._read_json(self.http.post(f"/v1/agents/{AGENT}/memories/batch", json={"memories": memories}))
        return list(answer["results"])

    def memories(self, user_id: str) -> list[Json]:
        """Return all memories of a user, including superseded ones, without expired ones."""
        found: list[Json] = []
        params: dict[str, Any] = {"user_id": user_id, "include_superseded": True, "limit": 100}
        while True:
            page = self._read_json(self.http.get(f"/v1/agents/{AGENT}/memories", params=params))
            found += page["results"]
            if not page["next_cursor"]:
                return found
            params["cursor"] = page["next_cursor"]

    def search(self, user_id: str, query: str, *, top_k: int, explain: bool = False) -> Json:
        """Search the memories of a user; return the whole response."""
        body = {"user_id": user_id, "query": query, "top_k": top_k, "explain": explain}
        return self._read_json(self.http.post(f"/v1/agents/{AGENT}/search", json=body))

    def search_problem(self, question: Json) -> Json:
        """Return the problem document of a search that is expected to fail."""
        body = {"user_id": question["user_id"], "query": question["query"]}
        return dict(self.http.post(f"/v1/agents/{AGENT}/search", json=body).json())

    def _read_json(self, response: httpx.Response) -> Json:
        request = f"{response.request.method} {response.request.url.path}"
        expect(request, expected="2xx", seen=f"{response.status_code} {response.text}", is_met=response.is_success)
        return dict(response.json())


@dataclass(frozen=True, slots=True)
class Qdrant:
    """Client of the Qdrant server below the API."""

    http: httpx.Client

    def collection(self) -> Json:
        """Return the facts of the agent's collection."""
        return self._result(f"/collections/{ALIAS}")

    def physical(self) -> str | None:
        """Return the name of the collection that the agent's alias points to, or None."""
        aliases = self._result("/aliases")["aliases"]
        return next((item["collection_name"] for item in aliases if item["alias_name"] == ALIAS), None)

    def delete(self, collection: str) -> None:
        """Delete a collection."""
        self.http.delete(f"/collections/{collection}").raise_for_status()

    def _result(self, path: str) -> Json:
        return dict(self.http.get(path).raise_for_status().json()["result"])


@dataclass(slots=True)
class Stack:
    """`agentmemory dev` as a separate process: dev Qdrant, reconciliation of a folder of manifests, API.

    Attributes:
        folder: Folder with the manifests, the data and the log.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def manifests(self) -> Path:
        """Return the folder of manifests that the stack watches."""
        return self.folder / "manifests"

    @property
    def log(self) -> Path:
        """Return the log file."""
        return self.folder / "stack.log"

    def read_ready_condition(self) -> Json:
        """Wait for the condition Ready in the agent's status file and return it. The API may serve shortly before."""

        def find_condition() -> Json | None:
            conditions = self.status("AgentMemory", AGENT).get("conditions", [])
            return next((condition for condition in conditions if condition["type"] == "Ready"), None)

        return wait_for(find_condition, description=f"the status of {AGENT} is written", limit_s=START_S)

    def status(self, kind: str, name: str) -> Json:
        """Return the status of an object from its file below the manifests, or {} if there is no file yet."""
        path = self.manifests / ".status" / f"agents.{name}.{kind.lower()}.json"
        return dict(json.loads(path.read_text("utf-8"))["status"]) if path.is_file() else {}

    def start(self) -> tuple[Api, Qdrant]:
        """Start the stack on free ports, and wait until it serves the agent."""
        output_path = self.folder / "stack.out"
        command = [sys.executable, "-m", "agentmemory_operator", "dev", "-v", "--port", "0"]
        command += ["--manifests", str(self.manifests), "--data", str(self.folder / "data")]
        with output_path.open("wb") as out, self.log.open("ab") as log:
            # In a separate session, Ctrl-C reaches only the demo, which then kills the stack.
            self.process = subprocess.Popen(
                command, env=stack_environment(), stdout=out, stderr=log, start_new_session=True
            )
        urls = wait_for(
            lambda: self._urls(output_path.read_text()), description="the stack prints its URLs", limit_s=START_S
        )
        api, qdrant = Api(client(urls["API"])), Qdrant(client(urls["Qdrant"]))
        wait_for(api.is_ready, description=f"the API serves {AGENT}", limit_s=START_S)
        return api, qdrant

    def _urls(self, output: str) -> dict[str, str] | None:
        if self.process and self.process.poll() is not None:
            raise ExpectationFailed(f"the stack ended with exit status {self.process.returncode} before it was ready")
        urls = dict(re.findall(r"^(API|Qdrant) (http://\S+)$", output, re.MULTILINE))
        return urls if len(urls) == 2 else None

    def stop(self) -> None:
        """Terminate the stack, and check that its exit status is 0."""
        if self.process:
            self.process.terminate()
            expect("exit status of the stack", expected=0, seen=self.process.wait(STOP_S))

    def kill(self) -> None:
        """Kill the stack at once, as a crash would."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def client(url: str) -> httpx.Client:
    """Return a client of a URL on this machine. It ignores the proxy of the environment."""
    return httpx.Client(base_url=url, timeout=REQUEST_S, trust_env=False)


def value_at(document: Json, path: str) -> object:
    """Return the value at a dotted path, or None."""
    value: Any = document
    for key in path.split("."):
        value = (value or {}).get(key)
    return value


def stack_environment() -> dict[str, str]:
    """Return this environment without variables for other servers, keys, or a proxy of local URLs."""
    foreign = ("AGENTMEMORY_", "QDRANT_", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # Requests to the dev Qdrant bypass a proxy.
    return kept | {"AGENTMEMORY_AUTH": "none", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
