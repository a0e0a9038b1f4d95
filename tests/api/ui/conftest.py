"""One API with the explorer on the development Qdrant server, for the tests of this folder."""

import time
from collections.abc import Iterator

import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import ALL_PASS, memory_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.mem0_site import EMBEDDING, SUBJECTS, NamedTokens
from tests.support.web.page_reader import Browser
from tests.support.web.shown_objects import ShownObjects

OPEN = memory_document("ui-open", embedding=EMBEDDING, scoring=ALL_PASS, entities={})
STRICT = memory_document(
    "ui-strict", embedding=EMBEDDING, scoring={"scoreThreshold": 0.9, "minSimilarity": 0.1, "allowOverrides": True}
)
AWAY = memory_document("ui-away", embedding=EMBEDDING)
SUBJECTS_AND_MORE = [
    *SUBJECTS,
    {"kind": "ServiceAccount", "namespace": "agents", "name": "reader", "verbs": ["read"]},
    {"kind": "ServiceAccount", "namespace": "agents", "name": "storer", "verbs": ["write"]},
    {"kind": "ServiceAccount", "namespace": "agents", "name": "auditor", "verbs": ["admin"]},
]
GUARDED = memory_document(
    "ui-guarded", embedding=EMBEDDING, scoring=ALL_PASS, entities={}, access={"subjects": SUBJECTS_AND_MORE}
)


@pytest.fixture(scope="session")
def ui_objects() -> ShownObjects:
    """Objects that the pages of `ui_stack` show."""
    return ShownObjects()


@pytest.fixture(scope="session")
def ui_stack(qdrant_url: str, ui_objects: ShownObjects) -> Iterator[Stack]:
    """API without authentication.

    Its agents are `ui-open`, `ui-strict`, whose thresholds remove almost all, and `ui-away`, which has no collection.
    """
    create_collection(qdrant_url, OPEN)
    create_collection(qdrant_url, STRICT)
    with running_api(qdrant_url, OPEN, STRICT, AWAY, serves_ui=True, shown=ui_objects) as stack:
        yield stack


@pytest.fixture(scope="session")
def browser(ui_stack: Stack) -> Iterator[Browser]:
    with Browser(ui_stack.api_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def ui_clock() -> FakeClock:
    """Clock of `guarded_stack`."""
    return FakeClock(int(time.time() * 1000))


@pytest.fixture(scope="session")
def guarded_stack(qdrant_url: str, ui_clock: FakeClock) -> Iterator[Stack]:
    """API of the agent `ui-guarded`, with the accounts chief, writer, bound, reader, storer and auditor."""
    create_collection(qdrant_url, GUARDED)
    guard = IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    with running_api(qdrant_url, GUARDED, guard=guard, clock=ui_clock, serves_ui=True) as stack:
        yield stack
