"""LangChain's published suites for retrievers and stores, and what they leave open."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests, RetrieversIntegrationTests

from agentmemory_client import ApiError, ApiUnreachable, Client, User
from agentmemory_client.adapters.langchain import AgentMemoryByteStore, AgentMemoryJsonStore, AgentMemoryRetriever

FACTS = ["Ada pays by invoice", "Ada lives in Oslo", "Ada drinks tea", "Ada's invoices go to her office"]
JSON_VALUES = ({"answer": [1, None, "äöü"]}, "text", 3.5)
# In base64 the first value looks like a key of a cloud, which the API removes from texts.
BYTE_VALUES = (bytes.fromhex("00a20020e48538334dec45c030f2c4"), b"\x00\xff" * 500, b"")


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def fill(self, user: User) -> None:
        self._user = user
        for fact in FACTS:
            user.add(fact)

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return AgentMemoryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"user": self._user}

    @property
    def retriever_query_example(self) -> str:
        return "how does Ada pay?"


class StoreFixtures:
    make: Any
    values: tuple[Any, Any, Any]

    @pytest.fixture
    def kv_store(self, client: Client) -> Any:
        return self.make(client.agent("words"), f"store-{uuid4().hex[:8]}")

    @pytest.fixture
    def three_values(self) -> tuple[Any, Any, Any]:
        return self.values


class TestJsonStoreSync(StoreFixtures, BaseStoreSyncTests[Any]):
    make, values = AgentMemoryJsonStore, JSON_VALUES


class TestJsonStoreAsync(StoreFixtures, BaseStoreAsyncTests):
    make, values = AgentMemoryJsonStore, JSON_VALUES


class TestByteStoreSync(StoreFixtures, BaseStoreSyncTests[bytes]):
    make, values = AgentMemoryByteStore, BYTE_VALUES


class TestByteStoreAsync(StoreFixtures, BaseStoreAsyncTests):
    make, values = AgentMemoryByteStore, BYTE_VALUES


class TestDocuments:
    def test_document_has_id_score_and_metadata(self, user: User) -> None:
        stored = user.add("Ada pays by invoice", tags=["billing"], metadata={"page": 3})

        [document] = AgentMemoryRetriever(user=user).invoke("invoice")

        assert (document.id, document.page_content) == (stored.id, "Ada pays by invoice")
        assert document.metadata["metadata"] == {"page": 3}
        assert document.metadata["tags"] == ["billing"]
        assert document.metadata["score"] > 0

    def test_options_reach_the_search(self, user: User) -> None:
        for number in range(3):
            user.add(f"Ada pays invoice {number}", tags=[f"t{number}"])

        found = AgentMemoryRetriever(user=user, options={"tags": ["t1"]}).invoke("invoice")

        assert [document.page_content for document in found] == ["Ada pays invoice 1"]

    @pytest.mark.parametrize("query", ["", "  \n", "\u200b"])
    def test_query_without_text_finds_nothing(self, user: User, query: str) -> None:
        user.add("Ada pays by invoice")

        assert AgentMemoryRetriever(user=user).invoke(query) == []

    @pytest.mark.parametrize("query", ["invoice " * 20_000, "Rechnung für Ada", "彼女はどう支払いますか"])
    def test_query_of_any_length_and_script_is_answered(self, user: User, query: str) -> None:
        user.add("Ada pays by invoice")

        assert AgentMemoryRetriever(user=user).invoke(query)

    def test_zero_documents_are_possible(self, user: User) -> None:
        user.add("Ada pays by invoice")

        assert AgentMemoryRetriever(user=user, k=0).invoke("invoice") == []

    def test_users_are_kept_apart(self, user: User, client: Client) -> None:
        client.agent("words").user(f"user-{uuid4().hex[:8]}").add("Bob pays by invoice")

        assert AgentMemoryRetriever(user=user).invoke("invoice") == []


class TestStores:
    @pytest.fixture
    def stores(self, client: Client) -> tuple[AgentMemoryJsonStore, AgentMemoryJsonStore]:
        agent, owner = client.agent("words"), f"store-{uuid4().hex[:8]}"
        return AgentMemoryJsonStore(agent, owner, name="a"), AgentMemoryJsonStore(agent, owner, name="b")

    def test_stores_of_different_names_share_no_keys(self, stores: tuple[Any, Any]) -> None:
        one, other = stores
        one.mset([("k", 1)])

        assert other.mget(["k"]) == [None]
        assert list(other.yield_keys()) == []

    def test_last_value_of_a_key_is_stored(self, stores: tuple[Any, Any]) -> None:
        stores[0].mset([("k", 1), ("k", 2)])

        assert stores[0].mget(["k"]) == [2]

    def test_many_and_large_values_are_stored(self, stores: tuple[Any, Any]) -> None:
        """600 values take three requests, eight of 400,000 characters two more."""
        values = [(f"k{number}", number) for number in range(600)]
        values += [(f"large{number}", "x" * 400_000) for number in range(8)]

        stores[0].mset(values)

        assert stores[0].mget([key for key, _ in values]) == [value for _, value in values]
        assert len(list(stores[0].yield_keys(prefix="k"))) == 600

    def test_refused_value_is_raised_and_others_stored(self, stores: tuple[Any, Any]) -> None:
        with pytest.raises(ApiError, match="larger than 1 MiB"):
            stores[0].mset([("large", "x" * 1_100_000), ("k", 1)])

        assert stores[0].mget(["large", "k"]) == [None, 1]

    def test_empty_calls_send_nothing(self, unreachable: User) -> None:
        store = AgentMemoryJsonStore(Client("http://127.0.0.1:9", retries=0).agent("words"), "store")

        store.mset([])
        store.mdelete([])
        assert store.mget([]) == []


def test_outage_is_raised(unreachable: User) -> None:
    with pytest.raises(ApiUnreachable):
        AgentMemoryRetriever(user=unreachable).invoke("invoice")


def test_example_of_the_page_runs(run_example: Callable[..., str]) -> None:
    assert "Ada pays by invoice" in run_example("langchain")
