"""The shipped NetworkPolicies, in a cluster network that enforces them (kind's does)."""

from collections.abc import Iterator

import pytest

from tests.e2e.installed import API, OPERATOR, QDRANT, RunningCluster
from tests.e2e.pods import NEEDS_PODS, PYTHON, operate, pods_of, run_helm, start_pod
from tests.support.cluster.installation import NAMESPACE
from tests.support.patience import wait_until

pytestmark = [*NEEDS_PODS]

API_PORT, OPERATOR_PORT, QDRANT_PORT, CLOSED_PORT = 8080, 8081, 6333, 9999
OPEN, REFUSED, DROPPED = "open", "ConnectionRefusedError", "TimeoutError"
# Prints the result of one connection. A dropped packet is sent again after 1 s.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
    print("open")
except OSError as error:
    print(type(error).__name__)
"""
LABELS = {
    component: {"app.kubernetes.io/name": "agentmemory", "app.kubernetes.io/component": component}
    for component in ("api", "operator")
}


def connect(cluster: RunningCluster, namespace: str, pod: str, name: str, port: int) -> str:
    """Return the result of a connection from a pod to the first pod of the release whose name starts with `name`."""
    address = pods_of(cluster, name)[0]["status"]["podIP"]
    return cluster.ask("--namespace", namespace, "exec", pod, "--", PYTHON, "-c", CONNECT, address, str(port)).strip()


def start_sleeper(cluster: RunningCluster, namespace: str, name: str, **labels: str) -> None:
    """Start a pod that only waits."""
    start_pod(cluster, namespace, name, {"command": ["sleep", "infinity"]}, labels=labels)


@pytest.fixture
def elsewhere(cluster: RunningCluster) -> Iterator[str]:
    """A namespace that is deleted afterwards."""
    namespace = cluster.create_namespace("e2e-")
    yield namespace
    cluster.http.delete(f"/api/v1/namespaces/{namespace}")


def test_only_operator_and_api_reach_qdrant(cluster: RunningCluster, elsewhere: str) -> None:
    start_sleeper(cluster, elsewhere, "stranger")
    # The labels count in the namespace of the release only.
    start_sleeper(cluster, elsewhere, "namesake", **LABELS["api"])
    start_sleeper(cluster, NAMESPACE, "neighbour")

    reached = {
        "api": connect(cluster, NAMESPACE, f"deployment/{API}", QDRANT, QDRANT_PORT),
        "operator": connect(cluster, NAMESPACE, f"deployment/{OPERATOR}", QDRANT, QDRANT_PORT),
        "stranger": connect(cluster, elsewhere, "stranger", QDRANT, QDRANT_PORT),
        "namesake": connect(cluster, elsewhere, "namesake", QDRANT, QDRANT_PORT),
        "neighbour": connect(cluster, NAMESPACE, "neighbour", QDRANT, QDRANT_PORT),
    }
    operate(cluster, "delete", "pod/neighbour", "--grace-period=0", "--force")

    assert reached == {
        "api": OPEN,
        "operator": OPEN,
        "stranger": DROPPED,
        "namesake": DROPPED,
        "neighbour": DROPPED,
    }


def test_pods_of_the_cluster_reach_one_port(cluster: RunningCluster, elsewhere: str) -> None:
    start_sleeper(cluster, elsewhere, "stranger")

    reached = [
        connect(cluster, elsewhere, "stranger", name, port)
        for name, port in (
            (API, API_PORT),
            (API, CLOSED_PORT),
            (OPERATOR, OPERATOR_PORT),
            (OPERATOR, CLOSED_PORT),
        )
    ]

    assert reached == [OPEN, DROPPED, OPEN, DROPPED]


def test_listed_callers_alone_reach_the_api(cluster: RunningCluster, elsewhere: str) -> None:
    start_sleeper(cluster, elsewhere, "caller", role="caller")
    start_sleeper(cluster, elsewhere, "stranger")
    listed = '[{"namespaceSelector":{},"podSelector":{"matchLabels":{"role":"caller"}}}]'
    release = ("agentmemory", "--namespace", NAMESPACE, "--wait", "--timeout=90s")
    keys = [f"networkPolicy.{component}.from={listed}" for component in ("api", "operator")]
    run_helm(
        "upgrade", *release, "charts/agentmemory-operator", "--reuse-values", *(f"--set-json={key}" for key in keys)
    )

    dropped = lambda: connect(cluster, elsewhere, "stranger", API, API_PORT) == DROPPED  # noqa: E731
    wait_until(dropped, seconds=20, what="the new policy")
    reached = {
        name: [
            connect(cluster, elsewhere, name, API, API_PORT),
            connect(cluster, elsewhere, name, OPERATOR, OPERATOR_PORT),
        ]
        for name in ("caller", "stranger")
    }
    ready = operate(cluster, "get", f"deployment/{API}", "--output=jsonpath={.status.readyReplicas}")
    run_helm("rollback", *release)

    assert reached == {"caller": [OPEN, OPEN], "stranger": [DROPPED, DROPPED]}
    # Probes come from the node.
    assert ready == "2"
