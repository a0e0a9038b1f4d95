"""Additions to an agent with a language model, which distils memories from the messages."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.patience import wait_until
from tests.support.spec.documents import ALL_PASS, memory_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.http_server import serve
from tests.support.web.language_models import Row, ScriptedModel
from tests.support.web.mem0_site import EMBEDDING, Mem0Site


def distilled(rows: list[Row]) -> Any:
    facts = [{"content": f"they moved: {row['content']}", "type": "fact", "sources": [row["id"]]} for row in rows]
    return {"memories": [fact | {"importance": "low"} for fact in facts]}


@pytest.fixture(scope="module")
def taught(qdrant_url: str) -> Iterator[Mem0Site]:
    """An agent with a model that makes a memory of each message."""
    with serve(ScriptedModel(answers={"perfect": distilled}).app()) as url:
        model = {"model": {"model": "m", "baseURL": f"{url}/v1", "timeoutSeconds": 5}}
        document = memory_document("mem0-taught", embedding=EMBEDDING, scoring=ALL_PASS, consolidation=model)
        create_collection(qdrant_url, document)
        with (
            running_api(qdrant_url, document, serves_mem0=True) as stack,
            httpx.Client(base_url=stack.api_url, timeout=20) as http,
        ):
            yield Mem0Site(http, "mem0-taught")


def test_event_ends_with_the_distilled_memories(taught: Mem0Site, user: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "I moved to Lisbon in May"}],
        "user_id": user,
        "agent_id": "waiter",
        "run_id": "r1",
        "metadata": {"source": "form"},
        "expiration_date": "2999-01-31",
    }
    answer = taught.call("POST", "/v3/memories/add/", json=body)
    assert answer.headers["X-AgentMemory-Infer"] == "distilling"
    added = answer.json()
    assert (added["status"], "results" in added) == ("PENDING", False)

    def event() -> Any:
        return taught.call("GET", f"/v1/event/{added['event_id']}/").json()

    assert event()["status"] in ("RUNNING", "SUCCEEDED")
    wait_until(lambda: event()["status"] == "SUCCEEDED", seconds=30)
    [fact] = event()["results"]
    assert (fact["memory"], fact["agent_id"], fact["run_id"], fact["metadata"], fact["expiration_date"]) == (
        "they moved: I moved to Lisbon in May",
        "waiter",
        "r1",
        {"source": "form"},
        "2999-01-31",
    )
    assert taught.texts({"user_id": user, "agent_id": "waiter"}) == [
        "I moved to Lisbon in May",
        "they moved: I moved to Lisbon in May",
    ]


def test_nothing_is_distilled_without_infer(taught: Mem0Site, user: str) -> None:
    body = {"messages": "I moved to Lisbon in May", "user_id": user, "infer": False}
    answer = taught.call("POST", "/v3/memories/add/", json=body)

    assert answer.json()["status"] == "SUCCEEDED"
    assert "X-AgentMemory-Infer" not in answer.headers
    assert taught.texts({"user_id": user}) == ["I moved to Lisbon in May"]
