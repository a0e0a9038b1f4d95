"""Traces of the operator: each pass with its calls to Qdrant, by the object's name, without its content."""

import pathlib

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_operator
from tests.support.cluster.workspace import Workspace
from tests.support.programs import running
from tests.support.web.http_server import serve
from tests.support.web.services import Collector, attributes_of


def test_passes_and_calls_are_traced(
    control_plane: ControlPlane, namespace: str, qdrant_url: str, tmp_path: pathlib.Path
) -> None:
    collector = Collector()
    workspace = Workspace(control_plane, namespace, qdrant_url)
    with serve(collector.app()) as url:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with running(start_operator(control_plane, tmp_path, **environment)) as program:
            workspace.create_ready()
            workspace.clean()
            program.stop()
    passes = {
        span.span_id: attributes_of(span)
        for service, span in collector.spans()
        if (service, span.name) == ("agentmemory-operator", "reconcile")
    }
    calls = [span for _, span in collector.spans() if span.name == "qdrant PUT"]

    ours = [told for told in passes.values() if told["k8s.namespace.name"] == namespace]
    assert {told["agentmemory.kind"] for told in ours} == {"AgentMemory", "QdrantConnection"}
    assert calls
    assert {passes[span.parent_span_id]["k8s.namespace.name"] for span in calls} >= {namespace}
