"""Run the tests of LangGraph's SQLite store against `AgentMemoryStore`, which takes its place.

`python -m tests.support.langgraph_suite CHECKOUT/libs/checkpoint-sqlite/tests`, where CHECKOUT is LangGraph's.

Each store has an API and a user of its own, and embeds with the test's embeddings. The run succeeds if no tests
fail but those of `LEFT_OUT`, which docs/keyed.md lists with their reasons.
"""

import contextlib
import importlib.util
import os
import pathlib
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

from agentmemory_client.langgraph_store import AgentMemoryStore
from agentmemory_operator.adapters.embedding.embedder_factory import build_embedder
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant

AGENT = "langgraph-{dimensions}"
LEFT_OUT = {
    "test_embed_with_path",
    "test_escape_glob_literal",
    "test_filter_keys_with_hyphens_and_digits",
    "test_list_namespaces_prefix_uses_indexable_condition",
    "test_namespace_labels_with_trailing_newline",
    "test_namespace_match_pattern",
    "test_no_running_loop",
    "test_sql_injection_vulnerability",
    "test_vector_search_ranks_closest_first",
    "test_vector_store_initialization",
}
FILES = ("test_store.py", "test_async_store.py")
SQLITE_NAMES = (
    *("NS_MATCH_FUNCTION", "BaseSqliteStore", "SqliteIndexConfig"),
    *("_escape_glob_literal", "_namespace_match_pattern"),
)
_STATE: dict[str, Any] = {"collections": set()}


class SuiteEmbedder:
    """Embedder of the API that uses the embeddings of a test."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings, self.dimensions = embeddings, int(embeddings.dims)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return list(self._embeddings.embed_documents(list(texts)))


class SuiteStore(AgentMemoryStore):
    """The store, with the names by which the tests open and inspect a SQLite store."""

    MIGRATIONS = ()

    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, _: str, *, index: Any = None, **options: Any) -> Iterator["SuiteStore"]:
        """Open a store for a new user of a new API."""
        with _serve(index) as (url, agent):
            fields = (index or {}).get("text_fields") or ["$"]
            with cls(agent, user_id=f"user-{uuid.uuid4()}", url=url, fields=fields, threshold=-1) as store:
                store.index_config, store.embeddings = index, (index or {}).get("embed")
                yield store

    def setup(self) -> None:
        """Do nothing: the collection exists."""


class AsyncSuiteStore(SuiteStore):
    """As `SuiteStore`, opened with `async with`."""

    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(cls, _: str, *, index: Any = None, **options: Any) -> AsyncIterator["AsyncSuiteStore"]:  # type: ignore[override]
        with super().from_conn_string("", index=index) as store:
            yield store

    async def setup(self) -> None:  # type: ignore[override]
        """Do nothing: the collection exists."""


@contextlib.contextmanager
def _serve(index: Any) -> Iterator[tuple[str, str]]:
    """Serve an API with one agent; yield its URL and the agent's name."""
    dimensions = int(index["dims"]) if index else 64
    source = {"provider": "openai", "model": "text-embedding-3-small"} if index else {"provider": "wordllama"}
    agent = AGENT.format(dimensions=dimensions)
    document = agent_document(agent, preset="keyed", embedding=source | {"dimensions": dimensions})
    if agent not in _STATE["collections"]:
        create_collection(_STATE["qdrant"], document)
        _STATE["collections"].add(agent)

    def embedder_of(source: EmbeddingSource) -> Embedder:
        return SuiteEmbedder(index["embed"]) if index else build_embedder(source, source, api_key=None)

    with running_api(_STATE["qdrant"], document, embedder_of=embedder_of if index else None) as stack:
        yield stack.api_url, agent


def _replace_sqlite() -> None:
    package, base = ModuleType("langgraph.store.sqlite"), ModuleType("langgraph.store.sqlite.base")
    package.SqliteStore, package.AsyncSqliteStore = SuiteStore, AsyncSuiteStore  # type: ignore[attr-defined]
    for name in (
        "NS_MATCH_FUNCTION",
        "BaseSqliteStore",
        "SqliteIndexConfig",
        "_escape_glob_literal",
        "_namespace_match_pattern",
    ):
        setattr(base, name, dict)
    sys.modules |= {package.__name__: package, base.__name__: base}


class Report:
    """Collects the names of the tests that passed and failed."""

    def __init__(self) -> None:
        self.passed, self.failed = list[str](), list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or (report.when == "call" and report.passed):
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            (self.failed if report.failed else self.passed).append(name)


def run_suite(folder: pathlib.Path) -> Report:
    """Run the tests of a folder; return the names of those that passed and failed."""
    _replace_sqlite()
    # The asynchronous tests import the other file by the name of its package, which is also that of these tests.
    spec = importlib.util.spec_from_file_location("tests.test_store", folder / "test_store.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["tests.test_store"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = Report()
    with tempfile.TemporaryDirectory() as data, dev_qdrant(pathlib.Path(data, "qdrant")) as url:
        _STATE["qdrant"] = url
        options = (
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            "--rootdir",
            data,
            "-c",
            os.devnull,
        )
        pytest.main([*options, "-o", "asyncio_mode=auto", *(str(folder / file) for file in FILES)], plugins=[report])
    return report


if __name__ == "__main__":
    done = run_suite(pathlib.Path(sys.argv[1]))
    print(f"{len(done.passed)} passed, {len(done.failed)} failed: {sorted(set(done.failed))}")
    sys.exit(not done.passed or not set(done.failed) <= LEFT_OUT)
