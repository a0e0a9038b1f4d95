"""A thousand writers of one key over three API processes; docs/writing.md has the figures."""

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
from tests.support.web.api_stack import create_collection, dev_qdrant

PROCESSES = 3
# Under way at a time, over all processes.
AT_ONCE = 48
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
    """Let that many write one key; return what each was answered, and the seconds it took in all."""

    def write(number: int) -> dict[str, Any]:
        body = {"user_id": "u", "type": "fact", "key": "k", "content": f"v{number}", "author": f"a{number % 7}"}
        body |= {"vector": vector_of(number)}
        answer = clients[number % len(clients)].post(MEMORIES, json=body)
        assert answer.status_code == 201, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    started_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(write, range(writers)))
    return answers, time.monotonic() - started_s


def check_chain(client: httpx.Client, answers: list[dict[str, Any]]) -> None:
    """Check that what was stored is one chain with one head, each version in it once, as each writer was told."""
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
    at, chain = heads[0], [heads[0]["id"]]
    while at["supersedes"] is not None:
        before = rows[at["supersedes"]]
        assert before["superseded_by"] == at["id"]
        assert before["valid_to"] == at["valid_from"]
        chain.append(before["id"])
        at = before
    assert len(chain) == len(set(chain)) == len(rows) == len(answers)
    assert {answer["id"]: answer["supersedes"] for answer in answers} == {
        row["id"]: row["supersedes"] for row in rows.values()
    }
    assert [answer["event"] for answer in answers].count("ADD") == 1


pytestmark = pytest.mark.faults


def test_a_thousand_writers_of_one_key_leave_one_unbroken_chain(tmp_path: pathlib.Path) -> None:
    with api_processes(tmp_path) as clients:
        answers, took_s = write_at_once(clients, 1000)

        check_chain(clients[0], answers)
    print(f"1,000 writers of one key over 3 processes: {took_s:.0f} s, {1000 / took_s:.0f} a second")
