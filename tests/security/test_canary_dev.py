"""No content of callers and no key appears in the outputs of `agentmemory dev`: text logs, statuses and traces.

One run at level debug with canaries in every input, valid and invalid requests, and servers that fail and repeat their
input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.cluster.canaries.canaries import Canaries
from tests.support.cluster.canaries.conversation import (
    Conversation,
    send_all_requests,
    send_invalid_requests,
    send_with_failing_embedder,
    send_with_failing_qdrant,
)
from tests.support.cluster.canaries.echoes import EMBEDDER_FAULTS, QDRANT_FAULTS, EchoingEmbedder, EchoingProxy
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running, start_qdrant
from tests.support.web.http_server import serve
from tests.support.web.services import Collector

SIZE = 8
SLUG = "bot"


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs of the run."""

    canaries: Canaries
    conversation: Conversation
    evidence: dict[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, canaries = tmp_path_factory.mktemp("dev"), Canaries()
    embedder, collector = EchoingEmbedder(SIZE), Collector()
    key = canaries.secret("Qdrant key")
    qdrant, qdrant_url = start_qdrant(folder / "qdrant", api_key=key)
    proxy = EchoingProxy(qdrant_url)
    with (
        running(qdrant),
        serve(embedder.app()) as embedder_url,
        serve(proxy.app()) as proxy_url,
        serve(collector.app()) as collector_url,
    ):
        token = canaries.secret("token of the API")
        variables = {
            "AGENTMEMORY_AUTH": "token",
            "AGENTMEMORY_TOKEN": token,
            "AGENTMEMORY_LOG_LEVEL": "debug",
            "AGENTMEMORY_LOG_FORMAT": "text",
            "OPENAI_API_KEY": canaries.secret("key of the embedding service"),
            "QDRANT_API_KEY": key,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        (folder / "manifests").mkdir()
        (folder / "manifests" / "agents.yaml").write_text(yaml.safe_dump_all(manifests(f"{embedder_url}/v1")))
        options = ("--manifests", str(folder / "manifests"), "--data", str(folder / "data"), "--qdrant", proxy_url)
        program = Program(folder / "dev.log", *AGENTMEMORY, "dev", *options, "--port", "0", **variables)
        with running(program):
            head = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=program.wait_for(r"API (http://\S+)")[1], headers=head, timeout=30) as http:
                conversation = Conversation(canaries, http)
                wait_until(lambda: http.get(f"/v1/agents/{SLUG}").is_success, seconds=30, what="the agent")
                converse(conversation, embedder, proxy)
                metrics = http.get("/metrics").text
            program.stop()
        states = sorted((folder / "manifests" / ".status").rglob("*"))
        yield Run(
            canaries,
            conversation,
            {
                "the log": program.log,
                "Qdrant's log": qdrant.log,
                "the metrics": metrics,
                "the traces": b"\n".join(collector.bodies).decode(errors="replace"),
                "the status": "\n".join(path.read_text() for path in states if path.is_file()),
            },
        )


def manifests(embedder_url: str) -> list[dict[str, Any]]:
    embedding = {"provider": "openai", "model": "m", "dimensions": SIZE, "baseURL": embedder_url, "timeoutSeconds": 1}
    spec = {"connectionRef": {"name": "main"}, "preset": "cognitive", "embedding": embedding}
    metadata = {"name": SLUG, "namespace": "agents"}
    connection = {"url": "http://qdrant.qdrant.svc:6333"}
    return [
        {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": metadata, "spec": spec},
        {
            "apiVersion": API_VERSION,
            "kind": "QdrantConnection",
            "metadata": metadata | {"name": "main"},
            "spec": connection,
        },
    ]


def converse(conversation: Conversation, embedder: EchoingEmbedder, proxy: EchoingProxy) -> None:
    canaries, send = conversation.canaries, conversation.send
    user = canaries.text("user")
    at = f"/v1/agents/{SLUG}"
    send_all_requests(conversation, SLUG, user)
    send_invalid_requests(conversation, SLUG, user, canaries.vector("vector", SIZE + 1))
    for header in (f"Bearer {canaries.secret('wrong token')}", f"Basic {canaries.secret('password')}"):
        send(401, "GET", f"{at}/memories", headers={"Authorization": header})
    send_with_failing_embedder(conversation, SLUG, user, embedder, EMBEDDER_FAULTS)
    send_with_failing_qdrant(conversation, SLUG, user, proxy, QDRANT_FAULTS)


def test_run_produces_outputs(run: Run) -> None:
    """Without outputs, the other tests would search nothing."""
    assert len(run.canaries.forms) > 100
    assert run.conversation.errors > 60
    assert "POST /v1/agents/bot/memories 201" in run.evidence["the log"]
    assert "DEBUG" in run.evidence["the log"]
    assert "agentmemory_api_request_duration_seconds" in run.evidence["the metrics"]
    assert "agentmemory.agent" in run.evidence["the traces"]
    assert "Converged" in run.evidence["the status"]


@pytest.mark.parametrize("place", ["the log", "Qdrant's log", "the metrics", "the traces", "the status"])
def test_output_contains_no_canary(run: Run, place: str) -> None:
    assert not [str(leak) for leak in run.canaries.find_leaks(run.evidence[place], place)]


def test_error_repeats_only_its_own_request(run: Run) -> None:
    assert not run.conversation.leaks, "\n".join(map(str, run.conversation.leaks))
