"""Replicas of operator and API, and a caller, whose tokens end after 10 minutes, the least that Kubernetes permits."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.e2e.installed import API, OPERATOR, QDRANT, Installed, RunningCluster, container
from tests.e2e.pods import PYTHON, TOKEN, CallerPod, operate, run_in, start_caller, start_pod
from tests.e2e.served_agent import PRINTER, ServedAgent, serve_agent
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.workspace import Workspace
from tests.support.web.http_server import check_success

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_S = 600
# Labels of the replicas. Drains and Services select other labels, those of a component.
LABELS = {"app": "aged"}
# The API server accepts a token for a minute longer, as clocks differ.
LEEWAY_S = 60


@dataclass(frozen=True, slots=True)
class AgedPods:
    """The pods, the agent that the caller searches, and the claims of each pod's first token."""

    cluster: RunningCluster
    agent: ServedAgent
    caller: CallerPod
    first: dict[str, dict[str, Any]]

    @property
    def refused_from_s(self) -> float:
        """Unix time from which no first token is accepted."""
        return max(claims["exp"] for claims in self.first.values()) + LEEWAY_S

    def claims(self) -> dict[str, dict[str, Any]]:
        """Return the claims of each pod's present token."""
        namespace = self.agent.workspace.namespace
        return {
            "caller": read_claims(self.cluster, namespace, "caller", TOKEN),
            **{name: read_claims(self.cluster, NAMESPACE, aged(name), f"{ACCOUNT}/token") for name in (API, OPERATOR)},
        }


def aged(deployment: str) -> str:
    """Return the name of a Deployment's replica with short tokens."""
    return f"aged-{deployment}"


def read_claims(cluster: RunningCluster, namespace: str, pod: str, path: str) -> dict[str, Any]:
    """Return the claims of a token that a pod can read."""
    done = run_in(cluster, namespace, pod, PYTHON, "-c", f"print(open('{path}').read())")
    assert done.returncode == 0, done.stderr
    payload = done.stdout.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def start_replica(cluster: RunningCluster, deployment: str) -> str:
    """Start a pod like those of a Deployment, which does not select it; return its address."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
    template = check_success(cluster.http.get(path)).json()["spec"]["template"]["spec"]
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    mount = {"name": "account", "mountPath": ACCOUNT, "readOnly": True}
    calling = container(cluster, deployment).spec
    calling["volumeMounts"] = [*calling.get("volumeMounts", ()), mount]
    volume = {"name": "account", "projected": {"sources": sources}}
    spec = {key: value for key, value in template.items() if key != "containers"}
    spec |= {"automountServiceAccountToken": False, "volumes": [*template.get("volumes", ()), volume]}
    start_pod(cluster, NAMESPACE, aged(deployment), calling, labels=LABELS, **spec)
    return operate(cluster, "get", "pod", aged(deployment), "--output=jsonpath={.status.podIP}")


def admit_to_qdrant(cluster: RunningCluster) -> None:
    """Let the replicas reach Qdrant, as the chart's NetworkPolicy lets its own pods."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    policy = check_success(cluster.http.get(f"{path}/{QDRANT}")).json()
    (rule,) = policy["spec"]["ingress"]
    ingress = [rule | {"from": [{"podSelector": {"matchLabels": LABELS}}]}]
    body = {"metadata": {"name": aged(QDRANT)}, "spec": policy["spec"] | {"ingress": ingress}}
    check_success(cluster.http.post(path, json=body))


@contextmanager
def start_aged(installed: Installed) -> Iterator[AgedPods]:
    """Start the pods, with an agent for them; remove pods and agent at the end."""
    cluster = installed.control_plane
    assert isinstance(cluster, RunningCluster)
    workspace = Workspace(cluster, cluster.create_namespace("e2e-"), installed.qdrant_url)
    admit_to_qdrant(cluster)
    addresses = {name: start_replica(cluster, name) for name in (OPERATOR, API)}
    with serve_agent(workspace, installed.api_url, connectionRef={"name": QDRANT, "namespace": NAMESPACE}) as agent:
        agent.store(PRINTER)
        caller = start_caller(agent, origin=f"http://{addresses[API]}:8080", period_s=1)
        made = AgedPods(cluster, agent, caller, {})
        made.first.update(made.claims())
        yield made
        operate(cluster, "delete", "pod", *map(aged, (OPERATOR, API)), "--grace-period=0", "--force")
