"""Suspended passes of an object, and requested ones."""

import pytest

from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.web.qdrant_proxy import Proxy

pytestmark = pytest.mark.usefixtures("operator")


def observations(proxy: Proxy) -> list[str]:
    """Return the calls of passes, without the probes of the connection."""
    return [path for _, path in proxy.calls if "/agent_memory_" in path]


def test_suspended_object_is_not_changed_until_resumed(workspace: Workspace, proxy: Proxy) -> None:
    workspace.connect(url=proxy.url)
    workspace.create()
    workspace.wait_ready()

    workspace.patch(suspend=True)
    workspace.wait_condition("Suspended", "True/Suspended")
    proxy.calls.clear()
    workspace.patch(index={"hnsw": {"m": 24}})
    workspace.run_pass()
    found = workspace.wait_condition("Suspended", "True/Suspended")

    assert "spec.suspend" in found["message"]
    assert observations(proxy) == []
    assert conditions_of(workspace.must_get())["Ready"] == "True/Serving"

    workspace.patch(suspend=False)
    workspace.wait_ready()

    assert workspace.config()["hnsw_config"]["m"] == 24
    assert "Suspended" not in conditions_of(workspace.must_get())


def test_requested_pass_runs_once(workspace: Workspace, proxy: Proxy) -> None:
    workspace.connect(url=proxy.url)
    workspace.create()
    workspace.wait_ready()
    workspace.run_pass()
    proxy.calls.clear()

    workspace.run_pass()
    once = observations(proxy)
    same = workspace.status()["lastHandledReconcileAt"]
    proxy.calls.clear()
    workspace.annotate(reconcile_requested_at=same)
    workspace.run_pass()

    # Two passes would have made twice as many calls.
    assert once
    assert observations(proxy) == once
    assert proxy.mutations() == []
