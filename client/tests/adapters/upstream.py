"""Plugin of pytest that runs the tests which frameworks have for their own stores on ours instead.

Anthropic's and CrewAI's tests are in the source distributions of PyPI, Pydantic AI's in the repository of its harness.
In the environment that `make test-adapters` has made, with an API that serves `words` and `numbers`:

AGENTMEMORY_ADAPTERS_URL=... python -m pytest -p client.tests.adapters.upstream tests/memory/test_stores.py
"""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from agentmemory_client import Client
from client.tests.adapters.conftest import AGENT, API_URL


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Replace the names by which each module makes a store."""
    client = Client(API_URL)
    for module in {item.getparent(pytest.Module) for item in items}:
        assert module is not None
        swap = {"test_filesystem": swap_files, "test_stores": swap_stores, "test_qdrant_edge_storage": swap_storage}
        # CrewAI's tests are skipped without the package of its own store.
        module.own_markers.clear()
        swap[module.path.stem](module.obj, client)


def new_user() -> str:
    return f"user-{uuid4().hex[:8]}"


class Mirror:
    """Copies files between the folder that some tests write to and the store, around each command.

    Args:
        files: The `UserFiles` of a tool.
    """

    def __init__(self, root: Path, files: Any) -> None:
        self._root = root
        self._files = files

    def around(self, call: Any) -> Any:
        def run(command: Any) -> Any:
            for path in self._root.iterdir():
                self._files.create(path.name, path.read_bytes().decode())
            result = call(command)
            return self._finish(result) if inspect.isawaitable(result) else self._download(result)

        return run

    async def _finish(self, result: Any) -> Any:
        return self._download(await result)

    def _download(self, result: Any) -> Any:
        for path in self._root.iterdir():
            path.write_bytes(self._files.read(path.name).text.encode())
        return result


def swap_files(module: ModuleType, client: Client) -> None:
    """Make tools whose `base_path` is their user, and snapshots of the files of a user."""
    import anyio

    from agentmemory_client.adapters.anthropic_memory import AgentMemoryTool, AsyncAgentMemoryTool
    from agentmemory_client.adapters.files import UserFiles

    agent = client.agent(AGENT)

    def factory(tool: type[Any], path_type: type[Any]) -> Any:
        def make(base_path: str) -> Any:
            made, root = tool(agent, user := new_user()), Path(base_path, "memories")
            root.mkdir()
            made.base_path, made.memory_root = user, path_type(root)
            mirror = Mirror(root, UserFiles(agent, user))
            for name in ("view", "str_replace", "insert"):
                setattr(made, name, mirror.around(getattr(made, name)))
            return made

        return make

    module.BetaLocalFilesystemMemoryTool = factory(AgentMemoryTool, Path)  # type: ignore[attr-defined]
    module.BetaAsyncLocalFilesystemMemoryTool = factory(AsyncAgentMemoryTool, anyio.Path)  # type: ignore[attr-defined]
    module.get_directory_snapshot = lambda user: {  # type: ignore[attr-defined]
        f"memories/{file.path}": file.text for file in UserFiles(agent, user).files()
    }


def swap_stores(module: ModuleType, client: Client) -> None:
    """Put our store in the place of each of the three local ones."""
    from agentmemory_client.adapters.pydantic_ai import AgentMemoryStore

    def make(*_: object) -> list[AgentMemoryStore]:
        return [AgentMemoryStore(client.agent(AGENT), new_user())] * 3

    module._local_stores = make  # type: ignore[attr-defined]


def swap_storage(module: ModuleType, client: Client) -> None:
    """Make storages that pad the vectors of four numbers that the tests use to eight."""
    from agentmemory_client.adapters.crewai import AgentMemoryStorage

    class PaddedStorage(AgentMemoryStorage):
        def save(self, records: Any) -> None:
            super().save(
                [record.model_copy(update={"embedding": [*record.embedding, 0, 0, 0, 0]}) for record in records]
            )

        def search(self, query_embedding: Any, *args: Any, **options: Any) -> Any:
            return super().search([*query_embedding, 0, 0, 0, 0], *args, **options)

    module._make_storage = lambda path, vector_dim=4: PaddedStorage(client.agent("numbers"), new_user())  # type: ignore[attr-defined]
