"""docs/mistakes.md: each mistake, made against a development stack, gets the response on the page."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.api.test_first_minute import Home
from tests.support.pages import DOCS
from tests.support.patience import wait_until

AGENT, TYPED = "/v1/agents/assistant", "/v1/agents/typed"
ADA = {"user_id": "ada", "content": "Ada drinks tea"}


@dataclass(frozen=True, slots=True)
class Served:
    """A stack with an agent that accepts any type, and one with its own types."""

    home: Home
    api: httpx.Client

    def post(self, path: str, body: object, **headers: str) -> str:
        """Return the status and the readable text of the response."""
        return describe(self.api.post(path, json=body, headers=headers))

    def run(self, *arguments: str, **environment: str) -> str:
        """Return the exit status and the whole output of a command."""
        code, output, error = self.home.run(*arguments, **environment)
        return " ".join(f"exit {code}: {output}{error}".split())

    def validate(self, name: str, spec: str) -> str:
        """Return the output of `validate` for an AgentMemory."""
        path = self.home.path / "wrong.yaml"
        head = f"apiVersion: agentmemory.dev/v1alpha1\nkind: AgentMemory\nmetadata: {{name: {name}}}\n"
        path.write_text(f"{head}spec: {{{spec}}}\n")
        return self.run("validate", "-f", str(path))


def describe(answer: httpx.Response) -> str:
    if answer.is_success:
        return f"{answer.status_code} {answer.text}"
    problem = answer.json()
    return f"{answer.status_code} {problem['title']}: {problem['detail']}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.run("init", "typed", "--preset", "cortex", "--into", str(home.place / "dev" / "manifests"))
    home.run("init", "assistant", "--into", str(home.place / "dev" / "manifests"))
    with home.dev() as program:
        url = program.wait_for(r"API (http://\S+)")[1]
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as api:
            for agent in (AGENT, TYPED):
                wait_until(lambda agent=agent: api.get(agent).is_success, seconds=30, what=agent)  # type: ignore[misc]
            yield Served(home, api)


def store(served: Served, **more: str) -> str:
    """Store a memory; return its id."""
    answer = served.api.post(f"{AGENT}/memories", json=ADA | more)
    return str(answer.raise_for_status().json()["id"])


def supersede_twice(served: Served) -> str:
    old = store(served, content="Ada drinks coffee")
    store(served, content="Ada drinks cocoa", supersedes=old)
    return served.post(f"{AGENT}/memories", ADA | {"content": "Ada drinks milk", "supersedes": old})


def unknown_to_dev(served: Served) -> str:
    return served.run("search", "assistant", "tea", "--user", "ada", "--url", "http://127.0.0.1:9")


MISTAKES: dict[str, Callable[[Served], str]] = {
    "no `user_id`": lambda served: served.post(f"{AGENT}/memories", {"content": "Ada drinks tea"}),
    "`text` for `content`": lambda served: served.post(f"{AGENT}/memories", {"user_id": "ada", "text": "x"}),
    "`limit` for `top_k`": lambda served: served.post(f"{AGENT}/search", {"user_id": "ada", "query": "q", "limit": 3}),
    "`userId` for `user_id`": lambda served: served.post(f"{AGENT}/search", {"userId": "ada", "query": "q"}),
    "an importance of 1 to 10": lambda served: served.post(f"{AGENT}/memories", ADA | {"importance": 8}),
    "a type that the agent does not have": lambda served: served.post(f"{TYPED}/memories", ADA | {"type": "Fact"}),
    "a time without its zone": lambda served: served.post(
        f"{AGENT}/memories", ADA | {"created_at": "2026-11-25T08:00:00"}
    ),
    "a vector for an agent that makes its own": lambda served: served.post(
        f"{AGENT}/memories", ADA | {"vector": [0.1] * 256}
    ),
    "a filter on a field of your own": lambda served: served.post(
        f"{AGENT}/search", {"user_id": "ada", "query": "q", "filters": {"ticket": "A-1"}}
    ),
    "a memory changed in place": lambda served: describe(
        served.api.patch(f"{AGENT}/memories/{store(served)}?user_id=ada", json={"content": "Ada drinks milk"})
    ),
    "a memory replaced twice": supersede_twice,
    "a memory of another user": lambda served: describe(
        served.api.get(f"{AGENT}/memories/{store(served)}?user_id=grace")
    ),
    "capitals in the agent's name": lambda served: served.post("/v1/agents/Assistant/memories", ADA),
    "an agent that nobody declared": lambda served: served.post("/v1/agents/helper/memories", ADA),
    "a path without the agent": lambda served: served.post("/v1/memories", ADA),
    "a slash at the end of a path": lambda served: served.post(f"{AGENT}/memories/", ADA),
    "GET for a search": lambda served: describe(served.api.get(f"{AGENT}/search?user_id=ada&query=tea")),
    "a body that is not declared as JSON": lambda served: describe(
        served.api.post(f"{AGENT}/memories", content=json.dumps(ADA))
    ),
    "a body with single quotes": lambda served: describe(
        served.api.post(f"{AGENT}/memories", content="{'user_id': 'ada'}", headers={"Content-Type": "application/json"})
    ),
    "messages for an agent without a model": lambda served: served.post(
        f"{AGENT}/messages", {"user_id": "ada", "messages": [{"role": "user", "content": "I drink tea"}]}
    ),
    "a user in other letters": lambda served: served.run("search", "assistant", "tea", "--user", "ADA"),
    "a threshold that nothing reaches": lambda served: served.run(
        "search", "assistant", "tea", "--user", "ada", "--threshold", "0.99"
    ),
    "a command without `--user`": lambda served: served.run("search", "assistant", "tea"),
    "a command while nothing runs": unknown_to_dev,
    "capitals in an object's name": lambda served: served.validate("Support-Bot", "connectionRef: {name: main}"),
    "a preset that there is not": lambda served: served.validate("bot", "connectionRef: {name: main}, preset: cortx"),
    "a field that there is not": lambda served: served.validate("bot", "connectionref: {name: main}"),
    "figures of another model": lambda served: served.validate(
        "bot", "connectionRef: {name: main}, preset: cortex, scoring: {confidence: {dailyFactor: 0.9}}"
    ),
}


def rows() -> dict[str, str]:
    """Return the quoted responses of the page, by mistake."""
    page = (DOCS / "mistakes.md").read_text()
    return dict(re.findall(r"^\| (?!---|mistake)(.+?) \| (.+?) \| .+? \|$", page, re.M))


def test_page_lists_the_mistakes_in_this_order() -> None:
    assert list(rows()) == list(MISTAKES)
    assert len(MISTAKES) >= 20


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_gets_the_documented_response(served: Served, mistake: str) -> None:
    response = MISTAKES[mistake](served)

    quoted = re.findall(r"`(.+?)`(?= |,|;|$)", rows()[mistake])
    assert quoted
    assert [part for part in quoted if part not in response] == [], response
