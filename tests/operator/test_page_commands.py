"""Commands of the pages that need a cluster with one agent: tests/golden/commands.yaml."""

import os
import pathlib
import shutil
import sys

import pytest
import yaml

from tests.support.cluster.workspace import OLD_CLUSTER, OLD_UID, Workspace
from tests.support.pages import commands_to_run, read_manifests, run_command
from tests.support.programs import clean_environment
from tests.support.spec.documents import Document

pytestmark = pytest.mark.usefixtures("operator")

AGENT = "support-bot"
# Some commands take, verify and restore a snapshot.
COMMAND_S = 120
RUN = commands_to_run("cluster")
ASKS = ("agentmemory cleanup", "agentmemory snapshot delete")


def kubeconfig_for(workspace: Workspace, folder: pathlib.Path) -> str:
    """Write a kubeconfig whose namespace is the test's; return its path."""
    path = folder / "kubeconfig"
    shutil.copy(workspace.control_plane.kubeconfig, path)
    config = yaml.safe_load(path.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = workspace.namespace
    path.write_text(yaml.safe_dump(config))
    return str(path)


def resolve(workspace: Workspace, text: str) -> str:
    """Replace a page's namespaces and servers by the test's."""
    places = {
        "-n agents": f"-n {workspace.namespace}",
        "-n infra": f"-n {workspace.namespace}",
        "namespace: agents": f"namespace: {workspace.namespace}",
        "agents/main": f"{workspace.namespace}/main",
        "agent_memory_support-bot": workspace.alias,
        "http://127.0.0.1:6333": workspace.qdrant_url,
        " --context prod": "",
        "=UID": f"={OLD_UID}",
        '"UID"': f'"{OLD_UID}"',
        "OLD": OLD_CLUSTER,
        "DIGEST": "0123456789ab",
    }
    for word, value in places.items():
        text = text.replace(word, value)
    return text


def run(command: str, workspace: Workspace, folder: pathlib.Path) -> None:
    resolved = resolve(workspace, command)
    resolved += (
        " --yes" if resolved.startswith(ASKS) and "--yes" not in resolved and "--dry-run" not in resolved else ""
    )
    # The connections of other tests on this API server are unreachable; the plain command would query each.
    resolved += f" --qdrant {workspace.qdrant_url}" if resolved == "agentmemory orphans" else ""
    programs = [str(workspace.control_plane.assets), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    environment = clean_environment() | {"KUBECONFIG": str(folder / "kubeconfig"), "PATH": os.pathsep.join(programs)}
    environment |= {"KUBERC": "off"}
    done = run_command(resolved, env=environment, cwd=folder, timeout=COMMAND_S)
    # A plan with changes exits with 2.
    assert done.returncode == (2 if " plan " in resolved else 0), f"{resolved}: {done.stdout}{done.stderr}"


def write_files(page: str, workspace: Workspace, folder: pathlib.Path) -> None:
    """Write the files that a page's commands read, and create the objects that they name."""
    (folder / "ca.crt").write_text("not read by these commands")
    (folder / "support-bot.yaml").write_text(yaml.safe_dump(applied(workspace.must_get(AGENT))))
    for name, manifest in read_manifests(page).items():
        (folder / name).write_text(resolve(workspace, manifest))
    if page == "docs/restore.md":
        workspace.create_snapshot("before-upgrade", of=AGENT)
        workspace.wait_condition("Verified", "True/Verified", name="before-upgrade", of="MemorySnapshot", seconds=20)


def applied(document: Document) -> Document:
    """Return an object as a manifest."""
    named = {name: document["metadata"][name] for name in ("name", "namespace")}
    return {name: document[name] for name in ("apiVersion", "kind", "spec")} | {"metadata": named}


@pytest.mark.parametrize("page", RUN)
def test_each_command_of_a_page_succeeds(page: str, workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready(AGENT, timeout_s=2)
    workspace.store_points(3)
    kubeconfig_for(workspace, tmp_path)
    write_files(page, workspace, tmp_path)

    assert RUN[page]
    for command in RUN[page]:
        run(command, workspace, tmp_path)
