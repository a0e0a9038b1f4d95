"""Pods of the tests that need nodes: callers, and a Qdrant with a disk of its own."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tests.e2e.installed import API, KUBECONFIG, OPERATOR, QDRANT, RunningCluster, container, reach
from tests.e2e.served_agent import PRINTER, QUESTION, ServedAgent
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import AUDIENCE
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import ROOT
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

NEEDS_PODS = (
    pytest.mark.skipif(KUBECONFIG not in os.environ, reason="needs pods: make e2e-node or make e2e-kind"),
    pytest.mark.timeout(400),
)
PYTHON = "/opt/agentmemory/bin/python"
TOKEN = "/var/run/secrets/agentmemory/token"
TOKEN_SOURCE = {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}}
# Calls a function of the caller's program without end, with a connection for each request; prints each failure.
CALLS = f"""
import json, time, urllib.request
def send(path, body):
    head = {{"Authorization": "Bearer " + open("{TOKEN}").read(), "Content-Type": "application/json"}}
    request = urllib.request.Request("URL" + path, json.dumps(body).encode(), head)
    return urllib.request.urlopen(request, timeout=10).read()
def repeat(call):
    for sent in range(1, 1_000_000):
        try:
            call(sent)
        except Exception as error:
            print("failed", sent, repr(error), flush=True)
        if sent % 10 == 0:
            print("sent", sent, flush=True)
        time.sleep(PERIOD_S)
"""
SEARCHES = f"""repeat(lambda sent: send("/search", {{"user_id": "u", "query": "{QUESTION}"}}))"""


@dataclass(frozen=True, slots=True)
class CallerPod:
    """Pod that calls the API with the token that its node projects."""

    cluster: RunningCluster
    namespace: str
    name: str = "caller"

    def lines(self, word: str) -> list[str]:
        """Return the lines of its log that start with a word."""
        log = self.cluster.ask("--namespace", self.namespace, "logs", f"pod/{self.name}")
        return [line for line in log.splitlines() if line.startswith(word)]

    def wait_for_calls(self, number: int = 50) -> None:
        """Wait until it has sent `number` more requests."""
        before = len(self.lines("sent"))
        wait_until(lambda: len(self.lines("sent")) >= before + number / 10, seconds=60, what="calls")


def start_caller(
    agent: ServedAgent,
    program: str = CALLS + SEARCHES,
    *,
    name: str = "caller",
    origin: str = "",
    period_s: float = 0.02,
) -> CallerPod:
    """Start a pod of the agent's account that runs a program, in which URL stands for the agent's URL.

    Args:
        origin: Scheme and host of the API. Default: its Service.
        period_s: Seconds between two calls of `repeat`.
    """
    cluster = running_cluster(agent.workspace)
    origin = origin or f"http://{API}.{NAMESPACE}.svc"
    program = program.replace("URL", f"{origin}/v1/agents/{agent.workspace.slug}").replace("PERIOD_S", str(period_s))
    calling = {
        "command": [PYTHON, "-u", "-c", program],
        "volumeMounts": [{"name": "token", "mountPath": str(pathlib.Path(TOKEN).parent)}],
    }
    volume = {"name": "token", "projected": {"sources": [TOKEN_SOURCE]}}
    start_pod(cluster, agent.workspace.namespace, name, calling, serviceAccountName="bot", volumes=[volume])
    return CallerPod(cluster, agent.workspace.namespace, name)


def running_cluster(workspace: Workspace) -> RunningCluster:
    """Return the cluster of a workspace."""
    assert isinstance(workspace.control_plane, RunningCluster)
    return workspace.control_plane


def start_pod(
    cluster: RunningCluster,
    namespace: str,
    name: str,
    calling: Document,
    *,
    labels: Document | None = None,
    **spec: Any,
) -> None:
    """Start a pod with one container, of the product's image unless `calling` names one; return when it is Ready."""
    one = {"name": name, "image": container(cluster, API).spec["image"]} | calling
    whole = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Always", "containers": [one]} | spec
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    applied = cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})
    assert applied.returncode == 0, applied.stderr
    cluster.ask("--namespace", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=55s")


def expose(cluster: RunningCluster, namespace: str, name: str, port: int) -> str:
    """Create a Service for the pods with the label `app` of its name; return its URL."""
    spec = {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": port}]}
    metadata = {"name": name, "namespace": namespace}
    applied = cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    assert applied.returncode == 0, applied.stderr
    return f"http://{name}.{namespace}.svc:{port}"


def run_in(cluster: RunningCluster, namespace: str, pod: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a pod."""
    return cluster.kubectl("--namespace", namespace, "exec", pod, "--", *command)


@dataclass(frozen=True, slots=True)
class QdrantPod:
    """Qdrant like the chart's, in a pod whose disk is a memory volume of fixed size, which ends with the pod."""

    workspace: Workspace
    size: str = "512Mi"
    name: str = "qdrant"
    key: str = "key-of-a-small-qdrant"

    @property
    def cluster(self) -> RunningCluster:
        return running_cluster(self.workspace)

    def start(self) -> None:
        """Start the pod as the chart does."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{QDRANT}"
        template = check_success(self.cluster.http.get(path)).json()["spec"]["template"]["spec"]
        (calling,) = template["containers"]
        key = {"name": "QDRANT__SERVICE__API_KEY", "value": self.key}
        calling["env"] = [key, *(item for item in calling["env"] if item["name"] != key["name"])]
        disk = {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": self.size}}
        start_pod(
            self.cluster,
            self.workspace.namespace,
            self.name,
            calling,
            labels={"app": self.name},
            volumes=[disk, *(volume for volume in template["volumes"] if volume["name"] != "data")],
            securityContext=template["securityContext"],
        )

    def connect(self) -> None:
        """Create its Service and the connection of the workspace."""
        url = expose(self.cluster, self.workspace.namespace, self.name, 6333)
        host = f"{self.name}.{self.workspace.namespace}.svc"
        self.workspace.create_secret(self.name, **{"api-key": self.key})
        annotation = f"agentmemory.dev/hosts={host}"
        self.cluster.ask("--namespace", self.workspace.namespace, "annotate", f"secret/{self.name}", annotation)
        self.workspace.connect(url=url, apiKeySecretRef={"name": self.name, "key": "api-key"})

    def lose(self) -> None:
        """Delete the pod with its disk."""
        self.cluster.ask(
            "--namespace", self.workspace.namespace, "delete", f"pod/{self.name}", "--grace-period=0", "--force"
        )

    def restarts(self) -> int:
        """Return the number of restarts of its container."""
        path = f"/api/v1/namespaces/{self.workspace.namespace}/pods/{self.name}"
        (status,) = check_success(self.cluster.http.get(path)).json()["status"]["containerStatuses"]
        return int(status["restartCount"])

    def fill(self) -> None:
        """Write a file until 32 MiB are free, which is less than Qdrant requires for two write-ahead logs."""
        self.run("sh", "-c", 'head -c "$(($(df --output=avail /data | tail -1) - 32768))K" /dev/zero > /data/filler')

    def free(self) -> None:
        """Remove the file of `fill`."""
        self.run("rm", "/data/filler")

    def run(self, *command: str) -> None:
        """Run a command in the pod, which must succeed."""
        done = run_in(self.cluster, self.workspace.namespace, f"pod/{self.name}", *command)
        assert done.returncode == 0, done.stderr


def operate(cluster: RunningCluster, *arguments: str) -> str:
    """Run kubectl in the namespace of the release."""
    return cluster.ask("--namespace", NAMESPACE, *arguments)


def wait_rolled_out(cluster: RunningCluster, *deployments: str) -> None:
    """Wait until all pods of the Deployments are new and ready."""
    for deployment in deployments:
        operate(cluster, "rollout", "status", f"deployment/{deployment}", "--timeout=55s")


def leader(cluster: RunningCluster) -> str:
    """Return the holder of the operators' lease, which contains the name of its pod; '' if the lease has no holder."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    (lease,) = check_success(cluster.http.get(path)).json()["items"]
    return str(lease["spec"].get("holderIdentity") or "")


@contextlib.contextmanager
def through_service(cluster: RunningCluster, agent: ServedAgent, folder: pathlib.Path) -> Iterator[ServedAgent]:
    """Forward to a pod that the API's Service has now; yield the agent with a client for it."""
    logs = pathlib.Path(tempfile.mkdtemp(dir=folder))
    headers = agent.caller.http.headers
    with (
        reach(cluster, API, logs) as url,
        httpx.Client(base_url=f"{url}/v1/agents/", headers=headers, timeout=10) as http,
    ):
        yield replace(agent, caller=replace(agent.caller, http=http))


def found(cluster: RunningCluster, agent: ServedAgent, folder: pathlib.Path) -> Callable[[], bool]:
    """Return a check that the stored memory is found, through a pod that the Service has now."""

    def is_found() -> bool:
        with (
            contextlib.suppress(httpx.HTTPError, AssertionError),
            through_service(cluster, agent, folder) as reached,
        ):
            return reached.found() == [PRINTER]
        return False

    return is_found


def pods_of(cluster: RunningCluster, *names: str) -> list[Document]:
    """Return the pods of the release whose names start with one of these."""
    pods = check_success(cluster.http.get(f"/api/v1/namespaces/{NAMESPACE}/pods")).json()["items"]
    return [pod for pod in pods if pod["metadata"]["name"].startswith(names)]


def restarts(cluster: RunningCluster) -> dict[str, int]:
    """Return the restarts of each pod of API and operator."""
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in pods_of(cluster, API, OPERATOR)
    }


def run_helm(*arguments: str) -> None:
    """Run helm in the sources; it must succeed."""
    done = subprocess.run(["helm", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
