"""One API and one development Qdrant for the whole run; each test has its own user."""

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import serve
from tests.support.web.rerankers import FakeRerankService

PROBE = agent_document("probe")
WORDS = agent_document("words", embedding={"provider": "wordllama", "dimensions": 64}, items={"keepVersions": 2})
KEYWORDS = agent_document(
    "keywords",
    embedding={"provider": "wordllama", "dimensions": 64},
    index={"keyword": {"enabled": True}},
    scoring={"scoreThreshold": -1, "minSimilarity": -1, "fusion": {"keywordWeight": 1.0}},
)
MIND = agent_document("mind", types=[{"name": "semantic", "halfLifeDays": 365}, {"name": "working", "halfLifeDays": 1}])
FLEETING = agent_document(
    "fleeting",
    types=[{"name": "semantic", "halfLifeDays": 365}, {"name": "working", "halfLifeDays": 1}],
    lifecycle={"sessionIdleHours": 0.0005},
)
MISSING = agent_document("missing")


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dev_qdrant(tmp_path_factory.mktemp("qdrant")) as url:
        create_collection(url, PROBE)
        create_collection(url, WORDS)
        create_collection(url, KEYWORDS)
        create_collection(url, MIND)
        create_collection(url, FLEETING)
        yield url


@pytest.fixture(scope="session")
def stack(qdrant_url: str) -> Iterator[Stack]:
    """API of the agents that tests share.

    `probe` (callers send 8 numbers), `words` (embeds offline, keeps two versions of an item), `keywords` (keyword
    search alone), `mind` (as `probe`, with the types semantic and working), `fleeting` (as `mind`, its sessions end
    after 1.8 s), `missing`.
    """
    with running_api(qdrant_url, PROBE, WORDS, KEYWORDS, MIND, FLEETING, MISSING) as running:
        yield running


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[httpx.Client]:
    # httpx sets this for `json=`, but not for a body given as bytes.
    with httpx.Client(base_url=stack.api_url, timeout=20, headers={"Content-Type": "application/json"}) as client:
        yield client


@pytest.fixture
def user() -> str:
    """Return a new user id."""
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def rerank_server() -> Iterator[tuple[FakeRerankService, str]]:
    """A rerank service and its URL."""
    service = FakeRerankService()
    with serve(service.app()) as url:
        yield service, url


@pytest.fixture
def rerank_service(rerank_server: tuple[FakeRerankService, str]) -> FakeRerankService:
    """The service of `rerank_server`, as new."""
    service, _ = rerank_server
    service.__init__()  # type: ignore[misc]
    return service
