"""One API with mem0's dialects on the development Qdrant server, for the tests of this folder."""

from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.mem0_site import GUARDED, OPEN, Mem0Site, NamedTokens


@pytest.fixture(scope="session")
def mem0_stack(qdrant_url: str) -> Iterator[Stack]:
    create_collection(qdrant_url, OPEN)
    with running_api(qdrant_url, OPEN, serves_mem0=True) as stack:
        yield stack


@pytest.fixture(scope="session")
def site(mem0_stack: Stack) -> Iterator[Mem0Site]:
    """The agent `mem0-open`, which everybody may use."""
    with httpx.Client(base_url=mem0_stack.api_url, timeout=20) as http:
        yield Mem0Site(http, "mem0-open")


@pytest.fixture(scope="session")
def guarded(qdrant_url: str) -> Iterator[Mem0Site]:
    """The agent `mem0-guarded`, with the accounts of `SUBJECTS`."""
    create_collection(qdrant_url, GUARDED)
    guard = IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    with (
        running_api(qdrant_url, GUARDED, guard=guard, serves_mem0=True) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as http,
    ):
        yield Mem0Site(http, "mem0-guarded")
