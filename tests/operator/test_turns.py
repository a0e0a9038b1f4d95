"""Reindexes of one connection run one after the other, on a real API server."""

import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

OTHER = "other"


def test_second_reindex_waits_for_the_first(workspace: Workspace) -> None:
    workspace.create_ready()
    workspace.create(OTHER, agent=f"{workspace.slug}-2")
    workspace.wait_ready(OTHER)
    for alias in (workspace.alias, f"{workspace.alias}-2"):
        workspace.store_points(3, alias)

    for name in ("memory", OTHER):
        workspace.patch(name, index={"hnsw": {"m": 24}})

    for name in ("memory", OTHER):
        workspace.wait_ready(name, seconds=15)
        wait_until(lambda name=name: "reindexSince" not in workspace.status(name), seconds=5, what="the turn's end")
    for alias in (workspace.alias, f"{workspace.alias}-2"):
        found = workspace.collection(alias)
        assert found is not None
        assert found["config"]["hnsw_config"]["m"] == 24
    messages = [workspace.events(name, kind="Normal").get("ReindexQueued", "") for name in ("memory", OTHER)]
    assert sum("is first" in message for message in messages) == 1
