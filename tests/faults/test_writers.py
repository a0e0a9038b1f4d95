"""A thousand writers of one key over three API processes; the figures are in docs/writing.md."""

import contextlib
import pathlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import yaml

from tests.support.engine.agents import vector_of
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import CLUSTER_ID, agent_document
from tests.support.web.api_stack import create_collection
from tests.support.web.dev_qdrant import dev_qdrant

PROCESSES = 3
# Concurrent writers, over all processes.
CONCURRENCY = 48
AGENT = agent_document("brain", preset="brain", index={"keyword": {"enabled": False}})
CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://127.0.0.1:6333"},
}
MEMORIES = "/v1/agents/brain/memories"


@contextlib.contextmanager
def api_processes(folder: pathlib.Path) -> Iterator[list[httpx.Client]]:
    """Run a development Qdrant and several API processes on it; yield a client of each."""
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([CONNECTION, AGENT]))
    options = ("--source", "files", "--manifests", str(manifests), "--port", "0")
    with contextlib.ExitStack() as stack:
        qdrant = stack.enter_context(dev_qdrant(folder / "qdrant"))
        create_collection(qdrant, AGENT)
        environment = {"QDRANT_URL": qdrant, "AGENTMEMORY_CLUSTER_ID": CLUSTER_ID}
        programs = [
            Program(folder / f"api-{number}.log", *AGENTMEMORY, "api", *options, **environment)
            for number in range(PROCESSES)
        ]
        for program in programs:
            stack.enter_context(running(program))
        clients = []
        for program in programs:
            url = program.wait_for(r"API (http\S+)")[1]
            client = stack.enter_context(httpx.Client(base_url=url, timeout=120))
            wait_until(lambda client=client: client.get("/readyz").status_code == 200, seconds=60, what="readiness")
            clients.append(client)
        yield clients


def write_at_once(clients: list[httpx.Client], writers: int) -> tuple[list[dict[str, Any]], float]:
    """Let all writers write one key; return their responses and the total seconds."""

    def write(number: int) -> dict[str, Any]:
        body = {"user_id": "u", "type": "fact", "key": "k", "content": f"v{number}", "author": f"a{number % 7}"}
        body |= {"vector": vector_of(number)}
        answer = clients[number % len(clients)].post(MEMORIES, json=body)
        assert answer.status_code == 201, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    started_s = time.monotonic()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(write, range(writers)))
    return answers, time.monotonic() - started_s


def check_chain(client: httpx.Client, answers: list[dict[str, Any]]) -> None:
    """Check that the stored versions are one chain with one head, and match the responses."""
    rows: dict[str, Any] = {}
    cursor: dict[str, str] = {}
    while True:
        parameters = {"user_id": "u", "include_superseded": "true", "limit": "500"} | cursor
        page = client.get(MEMORIES, params=parameters).json()
        rows |= {row["id"]: row for row in page["results"]}
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    heads = [row for row in rows.values() if row["superseded_by"] is None]
    assert len(heads) == 1
    row_, chain = heads[0], [heads[0]["id"]]
    while row_["supersedes"] is not None:
        predecessor = rows[row_["supersedes"]]
        assert predecessor["superseded_by"] == row_["id"]
        assert predecessor["valid_to"] == row_["valid_from"]
        chain.append(predecessor["id"])
        row_ = predecessor
    assert len(chain) == len(set(chain)) == len(rows) == len(answers)
    assert {answer["id"]: answer["supersedes"] for answer in answers} == {
        row["id"]: row["supersedes"] for row in rows.values()
    }
    assert [answer["event"] for answer in answers].count("ADD") == 1


pytestmark = pytest.mark.faults


def test_thousand_writers_leave_one_chain(tmp_path: pathlib.Path) -> None:
    with api_processes(tmp_path) as clients:
        answers, took_s = write_at_once(clients, 1000)

        check_chain(clients[0], answers)
    print(f"1,000 writers of one key over 3 processes: {took_s:.0f} s, {1000 / took_s:.0f} a second")
