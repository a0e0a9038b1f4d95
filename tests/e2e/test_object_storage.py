"""A snapshot in an S3 server of the cluster restores an agent whose Qdrant has lost its disk."""

import os

import pytest

from tests.e2e.installed import API, S3_IMAGE, Installed, RunningCluster, container
from tests.e2e.pods import NEEDS_PODS, QdrantPod, expose, start_pod
from tests.e2e.served_agent import PRINTER, WITHIN_S, serve_agent
from tests.support.cluster.workspace import CONNECTION
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

pytestmark = [*NEEDS_PODS, pytest.mark.skipif(S3_IMAGE not in os.environ, reason=f"needs {S3_IMAGE}")]

STORAGE, BUCKET = "storage", "copies"
KEY_ID, SECRET_KEY = "access-key-of-e2e", "secret-key-of-e2e"


def start_storage(cluster: RunningCluster, namespace: str) -> Document:
    """Start versitygw over an empty bucket; return its `spec.snapshots.storage`."""
    folder = {"name": "objects", "mountPath": "/objects"}
    # versitygw creates no bucket from its command line: a bucket is a folder.
    image = container(cluster, API).spec["image"]
    creating = {"name": "bucket", "image": image, "command": ["mkdir", f"/objects/{BUCKET}"], "volumeMounts": [folder]}
    keys = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET_KEY}
    serving = {
        "image": os.environ[S3_IMAGE],
        "args": ["--port", ":7070", "posix", "/objects"],
        "env": [{"name": name, "value": value} for name, value in keys.items()],
        "readinessProbe": {"tcpSocket": {"port": 7070}, "periodSeconds": 1},
        "volumeMounts": [folder],
    }
    start_pod(
        cluster,
        namespace,
        STORAGE,
        serving,
        labels={"app": STORAGE},
        initContainers=[creating],
        volumes=[{"name": "objects", "emptyDir": {}}],
        securityContext={"runAsUser": 65532, "fsGroup": 65532},
    )
    url = expose(cluster, namespace, STORAGE, 7070)
    return {"s3": {"endpoint": url, "bucket": BUCKET, "secretRef": {"name": STORAGE}}}


def test_copy_restores_agent_after_loss_of_disk(
    cluster: RunningCluster, installed: Installed, small_qdrant: QdrantPod
) -> None:
    workspace = small_qdrant.workspace
    storage = start_storage(cluster, workspace.namespace)
    workspace.create_secret(STORAGE, **{"access-key-id": KEY_ID, "secret-access-key": SECRET_KEY})
    host = f"agentmemory.dev/hosts={STORAGE}.{workspace.namespace}.svc"
    cluster.ask("--namespace", workspace.namespace, "annotate", f"secret/{STORAGE}", host)
    with serve_agent(
        workspace, installed.api_url, connectionRef={"name": CONNECTION}, snapshots={"storage": storage}
    ) as agent:
        agent.store(PRINTER)
        workspace.create_snapshot("kept")
        workspace.wait_condition("Verified", "True/Verified", name="kept", of="MemorySnapshot", seconds=WITHIN_S)
        locations = workspace.status("kept", "MemorySnapshot")["locations"]

        small_qdrant.lose()
        small_qdrant.start()
        wait_until(lambda: agent.search().status_code != 200, seconds=WITHIN_S, what="the loss")
        workspace.wait_condition("Ready", "False/CollectionLost", seconds=WITHIN_S)
        workspace.create_restore("back", {"snapshotRef": {"name": "kept"}})
        workspace.wait_condition("Succeeded", "True/Restored", name="back", of="MemoryRestore", seconds=WITHIN_S)
        wait_until(lambda: agent.search().status_code == 200, seconds=WITHIN_S, what="answers")

        assert [place["bucket"] for place in locations if place["type"] == "S3"] == [BUCKET]
        assert agent.found() == [PRINTER]
