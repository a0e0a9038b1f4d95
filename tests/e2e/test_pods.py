"""Events that only nodes have: rolling upgrades, drains, killed leaders, lost pods."""

import pathlib

from tests.e2e.installed import API, OPERATOR, QDRANT, RunningCluster
from tests.e2e.pods import NEEDS_PODS, CallerPod, found, leader, operate, restarts, run_helm, wait_rolled_out
from tests.e2e.served_agent import PRINTER, WITHIN_S, ServedAgent
from tests.support.cluster.installation import NAMESPACE
from tests.support.patience import wait_until

pytestmark = [*NEEDS_PODS]


def test_rolling_upgrade_fails_no_request(cluster: RunningCluster, caller: CallerPod) -> None:
    for deployment in (API, OPERATOR):
        operate(cluster, "rollout", "restart", f"deployment/{deployment}")
    wait_rolled_out(cluster, API, OPERATOR)
    caller.wait_for_calls()

    assert caller.lines("failed") == []


def test_killed_leader_is_replaced_within_the_lease(cluster: RunningCluster, agent: ServedAgent) -> None:
    before = leader(cluster)
    (holder,) = [
        pod
        for pod in operate(cluster, "get", "pods", "--output=name").split()
        if pod.removeprefix("pod/") in before and OPERATOR in pod
    ]

    operate(cluster, "delete", holder, "--grace-period=0", "--force")
    wait_until(lambda: leader(cluster) not in (before, ""), seconds=WITHIN_S, what="another leader")
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


def test_rollback_fails_no_request(cluster: RunningCluster, caller: CallerPod) -> None:
    release = ("agentmemory", "--namespace", NAMESPACE, "--wait", "--timeout=90s")
    run_helm("upgrade", *release, "charts/agentmemory-operator", "--reuse-values", "--set=api.drainSeconds=6")
    run_helm("rollback", *release)
    caller.wait_for_calls()

    assert caller.lines("failed") == []
