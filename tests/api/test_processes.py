"""API process: large requests, embedding, shutdown and traces."""

import contextlib
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml

from tests.support.engine.agents import vector_of
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import CLUSTER_ID, agent_document
from tests.support.web.api_stack import create_collection
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import serve
from tests.support.web.qdrant_proxy import Fault, serve_proxy
from tests.support.web.services import Collector, attributes_of

OPERATIONS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md"
WIDE = 512
JSON = {"Content-Type": "application/json"}
PLAIN = agent_document("plain", embedding={"provider": "none", "dimensions": WIDE})
WORDS = agent_document("words", embedding={"provider": "wordllama", "dimensions": 256})
CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://127.0.0.1:6333"},
}
VECTOR = vector_of("v", WIDE)


@pytest.fixture(scope="module")
def qdrant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dev_qdrant(tmp_path_factory.mktemp("qdrant")) as url:
        for document in (PLAIN, WORDS):
            create_collection(url, document)
        yield url


@contextlib.contextmanager
def serving(folder: pathlib.Path, qdrant_url: str, **environment: str) -> Iterator[tuple[Program, httpx.Client]]:
    """Run `agentmemory api` on manifests; yield it and a client once it is ready."""
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([CONNECTION, PLAIN, WORDS]))
    options = ("--source", "files", "--manifests", str(manifests), "--port", "0")
    environment |= {"QDRANT_URL": qdrant_url, "AGENTMEMORY_CLUSTER_ID": CLUSTER_ID}
    program = Program(folder / "api.log", *AGENTMEMORY, "api", *options, **environment)
    with running(program):
        url = program.wait_for(r"API (http\S+)")[1]
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, seconds=30, what="readiness")
            yield program, client


def wide_batch(number: int) -> bytes:
    """Return a batch of 10 MiB, mostly vectors."""
    memories = [{"user_id": f"flood-{number}", "vector": VECTOR, "content": str(place)} for place in range(1000)]
    return json.dumps({"memories": memories}).encode()


def peak_mib(program: Program) -> float:
    """Return the peak memory of the process, in MiB."""
    status = pathlib.Path(f"/proc/{program.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)[1]) / 1024  # type: ignore[index]


def probe_while(client: httpx.Client, work: Callable[[], httpx.Response]) -> tuple[httpx.Response, list[float], float]:
    """Return the response, the seconds of each concurrent `/healthz`, and the seconds of the work."""
    took: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        started_s = time.monotonic()
        working = pool.submit(work)
        while not working.done():
            probe_started_s = time.monotonic()
            assert client.get("/healthz").status_code == 200
            took.append(time.monotonic() - probe_started_s)
            time.sleep(0.005)
        return working.result(), took, time.monotonic() - started_s


def test_health_is_served_while_a_batch_is_embedded(tmp_path: pathlib.Path, qdrant: str) -> None:
    text = "the quick brown fox jumps over the lazy dog again and again because it can " * 200
    batch = {"memories": [{"user_id": "w", "content": f"{number} {text}"} for number in range(300)]}
    with serving(tmp_path, qdrant) as (_, client):
        url = f"{client.base_url}/v1/agents/words/memories/batch"

        answer, took_s, whole_s = probe_while(client, lambda: httpx.post(url, json=batch, timeout=100))

        assert [result.get("event") for result in answer.json()["results"]] == ["ADD"] * 300
        assert len(took_s) > 20
        assert max(took_s) < whole_s / 4


@pytest.mark.faults
def test_excess_large_batches_get_429_and_bound_memory(tmp_path: pathlib.Path, qdrant: str) -> None:
    bodies = [wide_batch(number) for number in range(3)]
    refusals: list[str] = []

    def store(number: int) -> int:
        while True:
            answer = httpx.post(url, content=bodies[number % 3], headers=JSON, timeout=100)
            if answer.status_code != 429:
                return len(answer.json()["results"])
            refusals.append(answer.headers["retry-after"])
            time.sleep(float(answer.headers["retry-after"]))

    with serving(tmp_path, qdrant, AGENTMEMORY_MAX_BODY_MIB="24") as (program, client):
        url = f"{client.base_url}/v1/agents/plain/memories/batch"
        before_mib = peak_mib(program)
        with ThreadPoolExecutor(12) as pool:
            stored = list(pool.map(store, range(12)))

        assert stored == [1000] * 12
        assert set(refusals) == {"1"}
        # Two batches at a time take 200 MiB, all twelve at once 900 MiB.
        assert peak_mib(program) - before_mib < 450


def test_shutdown_completes_requests_and_access_counts(tmp_path: pathlib.Path, qdrant: str) -> None:
    with serve_proxy(qdrant) as proxy, serving(tmp_path, proxy.url) as (program, client):
        base = f"{client.base_url}/v1/agents/plain"
        memory = {"user_id": "stop", "content": "c", "vector": VECTOR}
        client.post(f"{base}/memories", json=memory).raise_for_status()
        client.post(f"{base}/search", json={"user_id": "stop", "vector": VECTOR}).raise_for_status()
        proxy.fail_with(Fault(delay_s=1.5, of="writes"))
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(httpx.post, f"{base}/memories", json=memory | {"content": "d"}, timeout=60)
            wait_until(proxy.mutations, seconds=20, what="the write")
            program.terminate()
            answer = pending.result()
        wait_until(lambda: program.returncode is not None, seconds=30, what="the end of the process")

    assert answer.status_code == 201
    assert program.returncode == 0
    with httpx.Client(base_url=qdrant) as engine:
        filter_ = {"must": [{"key": "userId", "match": {"value": "stop"}}]}
        body = {"filter": filter_, "with_payload": ["content", "accessCount"], "limit": 10}
        points = engine.post("/collections/agent_memory_plain/points/scroll", json=body).json()["result"]["points"]
    counts = {point["payload"]["content"]: point["payload"].get("accessCount", 0) for point in points}
    assert counts == {"c": 1, "d": 0}


def test_tracing_sdk_is_not_imported_without_traces(tmp_path: pathlib.Path) -> None:
    code = "import sys, agentmemory_operator.main.api; print([n for n in sys.modules if 'opentelemetry.sdk' in n])"
    program = Program(tmp_path / "log", sys.executable, "-c", code)
    with running(program):
        program.wait_for(r"^\[\]$")


def test_traces_contain_operations_but_no_contents(tmp_path: pathlib.Path) -> None:
    collector = Collector()
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    secret = "a-secret-of-hers"
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    spec = {"connectionRef": {"name": "main"}, "embedding": {"provider": "wordllama", "dimensions": 64}}
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([CONNECTION, WORDS | {"spec": spec}]))
    options = ("--manifests", str(manifests), "--data", str(tmp_path / "data"), "--port", "0")
    with serve(collector.app()) as url:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        program = Program(tmp_path / "dev.log", *AGENTMEMORY, "dev", *options, **environment)
        with running(program):
            base = program.wait_for(r"API (http\S+)")[1]
            agent = f"{base}/v1/agents/words"
            wait_until(lambda: httpx.get(agent).status_code == 200, seconds=30, what="the agent")
            headers = {"traceparent": f"00-{trace}-{parent}-01"}
            body = {"user_id": "user-of-hers", "content": secret}
            httpx.post(f"{agent}/memories", json=body, headers=headers, timeout=30).raise_for_status()
            httpx.get(f"{agent}/memories?user_id=user-of-hers", timeout=30).raise_for_status()
            program.terminate()
            wait_until(lambda: program.returncode is not None, seconds=30, what="the end of the process")
    spans = collector.spans()

    request_spans = {span.name: span for _, span in spans if span.trace_id.hex() == trace}
    served = request_spans["POST"]
    assert served.parent_span_id.hex() == parent
    assert attributes_of(served) == {
        "http.request.method": "POST",
        "http.route": "/v1/agents/{agent}/memories",
        "http.response.status_code": 201,
        "agentmemory.agent": "words",
    }
    operation = request_spans["create_memory"]
    assert operation.parent_span_id == served.span_id
    for name in ("embed", "qdrant PUT points"):
        assert request_spans[name].parent_span_id == operation.span_id, name
    passes = [span for _, span in spans if span.name == "reconcile"]
    created = {span.parent_span_id for _, span in spans if span.name == "qdrant PUT"}
    assert created
    assert created <= {span.span_id for span in passes}
    assert {"words", "main"} <= {attributes_of(span)["agentmemory.name"] for span in passes}
    assert {service for service, _ in spans} == {"agentmemory-dev"}
    noted = {name for _, span in spans for name in attributes_of(span)}
    assert noted <= set(re.findall(r"`((?:http|agentmemory|k8s|error|gen_ai)\.[\w.]+)`", OPERATIONS.read_text()))
    sent = b"".join(collector.bodies)
    assert secret.encode() not in sent
    assert b"user-of-hers" not in sent


def test_unreachable_collector_delays_nothing(tmp_path: pathlib.Path, qdrant: str) -> None:
    """Neither requests nor the shutdown wait for the collector."""

    with serving(tmp_path, qdrant, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as (program, client):
        answers = [client.get("/v1/agents/plain").status_code for _ in range(50)]
        program.terminate()
        wait_until(lambda: program.returncode is not None, seconds=25, what="the end of the process")

    assert answers == [200] * 50
    assert program.returncode == 0
