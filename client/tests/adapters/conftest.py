"""Fixtures of the adapters' tests: the API that `make test-adapters` serves, and a new user for each test.

A framework has an environment of its own, so its tests run in a process of their own. Any other run skips them.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentmemory_client import Agent, Client, User

API_URL = os.environ.get("AGENTMEMORY_ADAPTERS_URL", "")
AGENT = "words"
NOBODY_URL = "http://127.0.0.1:9"
PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"


class UnservedModule(pytest.Module):
    """A module of tests that is skipped before it imports its framework."""

    def collect(self) -> Iterator[pytest.Item]:
        raise pytest.skip.Exception("`make test-adapters` runs these with their framework", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if API_URL else UnservedModule.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def api_url() -> str:
    return API_URL


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client(API_URL) as client:
        yield client


@pytest.fixture
def agent(client: Client) -> Agent:
    """The agent `words`, which embeds offline."""
    return client.agent(AGENT)


@pytest.fixture
def owner() -> str:
    """Id of a new user."""
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture
def user(agent: Agent, owner: str) -> User:
    return agent.user(owner)


@pytest.fixture
def unreachable() -> Iterator[User]:
    """A user of an API that does not run; calls fail at once."""
    with Client(NOBODY_URL, retries=0) as client:
        yield client.agent(AGENT).user("ada")


@pytest.fixture
def run_example(user: User, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs the example of an adapter on docs/adapters.md and returns its output.

    It runs with the API, the agent and the user of the test, and with further names, for example `model`.
    """

    def run(adapter: str, **names: object) -> str:
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        [source] = [block for block in blocks if f"agentmemory_client.adapters.{adapter} " in block]
        for shown, value in (("http://127.0.0.1:8080", API_URL), ("support-bot", AGENT), ('"ada"', repr(user_id))):
            source = source.replace(shown, value)
        exec(compile(source, PAGE.name, "exec"), {"__name__": "__main__", **names})
        return capsys.readouterr().out

    _, user_id = user._bound
    return run
