"""Operator, API and a caller run longer than their tokens, which kubelet replaces after 80 % of 10 minutes.

The pods start with the first test of the session, and this test is one of the last, so it adds little time.
"""

import time

import pytest

from tests.e2e.aged_pods import AgedPods, aged
from tests.e2e.installed import OPERATOR
from tests.e2e.pods import NEEDS_PODS, leader, operate, wait_rolled_out
from tests.e2e.served_agent import WITHIN_S
from tests.support.patience import wait_until

pytestmark = [*NEEDS_PODS, pytest.mark.timeout(1500)]


def test_pods_outlive_their_tokens(aged_pods: AgedPods) -> None:
    cluster, caller, workspace = aged_pods.cluster, aged_pods.caller, aged_pods.agent.workspace
    wait_until(lambda: time.time() > aged_pods.refused_from_s, seconds=900, what="the end of the first tokens")

    replaced = {name: claims["iat"] > aged_pods.first[name]["iat"] for name, claims in aged_pods.claims().items()}
    before = caller.lines("failed")
    caller.wait_for_calls(10)
    failed = caller.lines("failed")
    operate(cluster, "scale", f"deployment/{OPERATOR}", "--replicas=0")
    wait_until(lambda: aged(OPERATOR) in leader(cluster), seconds=WITHIN_S, what="the aged operator as leader")
    workspace.patch(scoring={"weights": {"similarity": 1, "recency": 0, "utility": 0}})
    workspace.wait_ready(seconds=WITHIN_S)
    operate(cluster, "scale", f"deployment/{OPERATOR}", "--replicas=2")
    wait_rolled_out(cluster, OPERATOR)

    assert set(replaced.values()) == {True}
    assert failed == before
    # Other tests stop Qdrant for a while, which is 503.
    assert [line for line in failed if "401" in line or "403" in line] == []
