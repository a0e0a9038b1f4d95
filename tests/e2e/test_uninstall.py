"""The release is removed and installed again. This test is the last one: tokens of its accounts end with it."""

import os
import pathlib
import shlex

from tests.e2e.installed import HELM_FLAGS, HELM_INSTALL, RunningCluster
from tests.e2e.pods import NEEDS_PODS, found, run_helm
from tests.e2e.served_agent import PRINTER, ServedAgent
from tests.support.cluster.installation import NAMESPACE
from tests.support.patience import wait_until

pytestmark = [*NEEDS_PODS]


def test_removed_release_keeps_objects_and_memories(
    cluster: RunningCluster, agent: ServedAgent, tmp_path: pathlib.Path
) -> None:
    agent.store(PRINTER)
    _, *install = shlex.split(HELM_INSTALL)
    names = lambda: cluster.ask("get", "agentmemories", "--all-namespaces", "--output=name").split()  # noqa: E731
    before = names()

    run_helm("uninstall", "agentmemory", "--namespace", NAMESPACE, "--wait", "--timeout=90s")
    kept = names()
    run_helm(*install, *shlex.split(os.environ[HELM_FLAGS]))

    assert kept == before
    wait_until(found(cluster, agent, tmp_path), seconds=120, what="the memory")
