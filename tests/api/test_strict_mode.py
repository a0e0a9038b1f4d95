"""Qdrant's strict mode without exact search, set while the API serves: all calls still succeed."""

import pathlib
from typing import Any

import httpx

from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import check_success

AGENT = "/v1/agents/strict"


def test_search_and_counts_work_without_exact_search(tmp_path: pathlib.Path) -> None:
    document = agent_document("strict")
    search = {"user_id": "u", "vector": [1, 0, 0, 0, 0, 0, 0, 1], "top_k": 3, "explain": True}
    with dev_qdrant(tmp_path) as qdrant_url:
        create_collection(qdrant_url, document)
        collection = f"{qdrant_url}/collections/agent_memory_strict"
        with running_api(qdrant_url, document) as stack, httpx.Client(base_url=stack.api_url, timeout=20) as client:

            def found() -> tuple[list[str], bool, int]:
                answer: Any = check_success(client.post(f"{AGENT}/search", json=search)).json()
                stats = check_success(client.get(f"{AGENT}/stats", params={"user_id": "u"})).json()
                contents = [result["content"] for result in answer["results"]]
                return (
                    contents,
                    answer["candidates"]["exact"],
                    sum(count for states in stats["types"].values() for count in states.values()),
                )

            for number in range(5):
                memory = {"user_id": "u", "content": f"m{number}", "vector": [1, 0, 0, 0, 0, 0, 0, number]}
                check_success(client.post(f"{AGENT}/memories", json=memory))
            before = found()
            check_success(
                httpx.patch(collection, json={"strict_mode_config": {"enabled": True, "search_allow_exact": False}})
            )
            during = [found() for _ in range(2)]
            check_success(httpx.patch(collection, json={"strict_mode_config": {"enabled": False}}))

    assert (len(before[0]), *before[1:]) == (3, True, 5)
    assert during == [(before[0], False, 5)] * 2
