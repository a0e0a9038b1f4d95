"""Events that only nodes have: rolling upgrades, drains, killed leaders, lost pods, a removed release."""

import contextlib
import os
import pathlib
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace

import httpx
import pytest

from tests.e2e.installed import (
    API,
    HELM_FLAGS,
    HELM_INSTALL,
    KUBECONFIG,
    OPERATOR,
    QDRANT,
    Installed,
    RunningCluster,
    container,
    reach,
)
from tests.e2e.served_agent import PRINTER, QUESTION, WITHIN_S, ServedAgent
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import AUDIENCE
from tests.support.patience import wait_until
from tests.support.programs import ROOT
from tests.support.web.http_server import check_success

pytestmark = [
    pytest.mark.skipif(KUBECONFIG not in os.environ, reason="needs pods: make e2e-node or make e2e-kind"),
    pytest.mark.timeout(400),
]

TOKEN = "/var/run/secrets/agentmemory/token"
# Searches without end, with a connection for each request, and prints each failure.
CALLER = f"""
import json, time, urllib.request
body = json.dumps({{"user_id": "u", "query": "{QUESTION}"}}).encode()
for sent in range(1, 1_000_000):
    head = {{"Authorization": "Bearer " + open("{TOKEN}").read(), "Content-Type": "application/json"}}
    try:
        urllib.request.urlopen(urllib.request.Request("URL", body, head), timeout=10).read()
    except Exception as error:
        print("failed", sent, repr(error), flush=True)
    if sent % 10 == 0:
        print("sent", sent, flush=True)
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True)
class CallerPod:
    """Pod that searches through the Service with the token that its node projects."""

    cluster: RunningCluster
    namespace: str

    def lines(self, word: str) -> list[str]:
        """Return the lines of its log that start with a word."""
        log = self.cluster.ask("--namespace", self.namespace, "logs", "pod/caller")
        return [line for line in log.splitlines() if line.startswith(word)]

    def wait_for_calls(self, number: int = 50) -> None:
        """Wait until it has sent more requests."""
        before = len(self.lines("sent"))
        wait_until(lambda: len(self.lines("sent")) >= before + number / 10, seconds=60, what="calls")


@pytest.fixture
def cluster(installed: Installed) -> RunningCluster:
    assert isinstance(installed.control_plane, RunningCluster)
    return installed.control_plane


@pytest.fixture
def caller(cluster: RunningCluster, agent: ServedAgent) -> CallerPod:
    """A pod that calls the API all the time, after its first answers."""
    agent.store(PRINTER)
    namespace, slug = agent.workspace.namespace, agent.workspace.slug
    url = f"http://{API}.{NAMESPACE}.svc/v1/agents/{slug}/search"
    source = {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}}
    calling = {
        "name": "caller",
        "image": container(cluster, API).spec["image"],
        "command": ["/opt/agentmemory/bin/python", "-c", CALLER.replace("URL", url)],
        "volumeMounts": [{"name": "token", "mountPath": str(pathlib.Path(TOKEN).parent)}],
    }
    spec = {
        "serviceAccountName": "bot",
        "terminationGracePeriodSeconds": 0,
        "containers": [calling],
        "volumes": [{"name": "token", "projected": {"sources": [source]}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "caller", "namespace": namespace}, "spec": spec}
    applied = cluster.apply(pod)
    assert applied.returncode == 0, applied.stderr
    cluster.ask("--namespace", namespace, "wait", "--for=condition=Ready", "pod/caller", "--timeout=60s")
    made = CallerPod(cluster, namespace)
    made.wait_for_calls()
    assert made.lines("failed") == []
    return made


def operate(cluster: RunningCluster, *arguments: str) -> str:
    """Run kubectl in the namespace of the release."""
    return cluster.ask("--namespace", NAMESPACE, *arguments)


def wait_rolled_out(cluster: RunningCluster, *deployments: str) -> None:
    """Wait until all pods of the Deployments are new and ready."""
    for deployment in deployments:
        operate(cluster, "rollout", "status", f"deployment/{deployment}", "--timeout=55s")


def found(cluster: RunningCluster, agent: ServedAgent, folder: pathlib.Path) -> Callable[[], bool]:
    """Return a check that the stored memory is found, through a pod that the Service has now."""

    def is_found() -> bool:
        logs = pathlib.Path(tempfile.mkdtemp(dir=folder))
        headers = agent.caller.http.headers
        with (
            contextlib.suppress(httpx.HTTPError, AssertionError),
            reach(cluster, API, logs) as url,
            httpx.Client(base_url=f"{url}/v1/agents/", headers=headers, timeout=10) as http,
        ):
            return replace(agent, caller=replace(agent.caller, http=http)).found() == [PRINTER]
        return False

    return is_found


def test_rolling_upgrade_fails_no_request(cluster: RunningCluster, caller: CallerPod) -> None:
    for deployment in (API, OPERATOR):
        operate(cluster, "rollout", "restart", f"deployment/{deployment}")
    wait_rolled_out(cluster, API, OPERATOR)
    caller.wait_for_calls()

    assert caller.lines("failed") == []


def test_killed_leader_is_replaced_within_the_lease(cluster: RunningCluster, agent: ServedAgent) -> None:
    (lease,) = check_success(cluster.http.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")).json()[
        "items"
    ]
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease['metadata']['name']}"
    holder = lambda: check_success(cluster.http.get(path)).json()["spec"]["holderIdentity"]  # noqa: E731
    before = holder()
    (leader,) = [
        pod
        for pod in operate(cluster, "get", "pods", "--output=name").split()
        if pod.removeprefix("pod/") in before and OPERATOR in pod
    ]

    operate(cluster, "delete", leader, "--grace-period=0", "--force")
    wait_until(lambda: holder() not in (before, ""), seconds=WITHIN_S, what="another leader")
    agent.workspace.patch(scoring={"weights": {"similarity": 1, "recency": 0, "utility": 0}})

    agent.workspace.wait_ready(seconds=WITHIN_S)
    wait_rolled_out(cluster, OPERATOR)


def test_drain_leaves_a_replica(cluster: RunningCluster, caller: CallerPod) -> None:
    """Evictions stop when one replica is left, because no other node takes the evicted one."""
    nodes = operate(cluster, "get", "nodes", "--output=name").split()
    selector = "--pod-selector=app.kubernetes.io/component in (api, operator)"
    drained = [
        cluster.kubectl("drain", node, selector, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=15s")
        for node in nodes
    ]
    caller.wait_for_calls()
    for node in nodes:
        operate(cluster, "uncordon", node)
    wait_rolled_out(cluster, API, OPERATOR)

    assert "disruption budget" in "".join(done.stderr for done in drained)
    assert caller.lines("failed") == []


def test_lost_qdrant_pod_keeps_memories(cluster: RunningCluster, agent: ServedAgent, tmp_path: pathlib.Path) -> None:
    agent.store(PRINTER)

    operate(cluster, "delete", "pod", f"{QDRANT}-0", "--grace-period=0", "--force")

    wait_until(found(cluster, agent, tmp_path), seconds=120, what="the memory")


def restarts(cluster: RunningCluster) -> dict[str, int]:
    """Return the restarts of each pod of API and operator."""
    pods = check_success(cluster.http.get(f"/api/v1/namespaces/{NAMESPACE}/pods")).json()["items"]
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in pods
        if pod["metadata"]["name"].startswith((API, OPERATOR))
    }


def test_api_without_qdrant_is_unready_but_not_restarted(cluster: RunningCluster, agent: ServedAgent) -> None:
    before = restarts(cluster)
    ready = "--output=jsonpath={.status.readyReplicas}"

    operate(cluster, "scale", f"statefulset/{QDRANT}", "--replicas=0")
    wait_until(lambda: operate(cluster, "get", f"deployment/{API}", ready) == "", seconds=60, what="no ready replica")
    operate(cluster, "scale", f"statefulset/{QDRANT}", "--replicas=1")
    wait_rolled_out(cluster, API, OPERATOR)

    assert restarts(cluster) == before
    agent.workspace.wait_ready(seconds=WITHIN_S)


def test_command_works_inside_a_pod(cluster: RunningCluster, agent: ServedAgent) -> None:
    listed = operate(cluster, "exec", f"deployment/{OPERATOR}", "--", "agentmemory", "status", "--all-namespaces")

    assert agent.workspace.namespace in listed


def run_helm(*arguments: str) -> None:
    """Run helm in the sources; it must succeed."""
    done = subprocess.run(["helm", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rollback_fails_no_request(cluster: RunningCluster, caller: CallerPod) -> None:
    release = ("agentmemory", "--namespace", NAMESPACE, "--wait", "--timeout=90s")
    run_helm("upgrade", *release, "charts/agentmemory-operator", "--reuse-values", "--set=api.drainSeconds=6")
    run_helm("rollback", *release)
    caller.wait_for_calls()

    assert caller.lines("failed") == []


def test_removed_release_keeps_objects_and_memories(
    cluster: RunningCluster, agent: ServedAgent, tmp_path: pathlib.Path
) -> None:
    agent.store(PRINTER)
    _, *install = shlex.split(HELM_INSTALL)

    run_helm("uninstall", "agentmemory", "--namespace", NAMESPACE, "--wait", "--timeout=90s")
    kept = cluster.ask("get", "agentmemories", "--all-namespaces", "--output=name").split()
    run_helm(*install, *shlex.split(os.environ[HELM_FLAGS]))

    assert len(kept) == 1
    wait_until(found(cluster, agent, tmp_path), seconds=120, what="the memory")
