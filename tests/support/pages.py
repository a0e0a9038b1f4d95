"""The commands that a page of the documentation shows: lines after `$ ` in its console blocks."""

import ast
import functools
import os
import pathlib
import re
import subprocess
import sys

from tests.support.cluster.workspace import Workspace

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# There are no Deployments, nor a namespace of the product, where the operator runs as a process.
NEEDS_PODS = "agentmemory-system"
NAMED_TESTS = re.compile(r"`((?:devserver/)?tests/[\w/]+\.py)::(\w+)`")


def commands_of(page: str, heading: str = "") -> list[str]:
    """Return the commands of a page, or of the part under one heading, without comments."""
    text = (DOCS / page).read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines]


def write_manifests(workspace: Workspace, page: str, heading: str, *, folder: pathlib.Path, **values: str) -> None:
    """Write what a page shows as manifests, for the test's objects, each into the file that its first line names."""
    text = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    for name, manifest in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", text, re.M | re.S):
        said = manifest.replace("namespace: agents", f"namespace: {workspace.namespace}").replace(
            "support-bot", "memory"
        )
        for word, value in values.items():
            said = said.replace(word, value)
        (folder / name).write_text(said)


def run_page(workspace: Workspace, page: str, heading: str, *, folder: pathlib.Path, **values: str) -> list[str]:
    """Run what a page shows on the test's object; return what each command printed."""
    path = os.pathsep.join(
        [str(workspace.control_plane.assets), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = os.environ | {"KUBECONFIG": str(workspace.control_plane.kubeconfig), "PATH": path, "KUBERC": "off"}
    printed = []
    for command in commands_of(page, heading):
        if NEEDS_PODS in command:
            continue
        said = command.replace("-n agents", f"-n {workspace.namespace}").replace("support-bot", "memory")
        # On this API server the connections of other tests lead nowhere; on a user's each is asked.
        said = said.replace("agentmemory orphans", f"agentmemory orphans --qdrant {workspace.qdrant_url}")
        for word, value in values.items():
            said = said.replace(word, value)
        done = subprocess.run(said, shell=True, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
        assert done.returncode == 0, f"{said}: {done.stdout}{done.stderr}"
        printed.append(done.stdout)
    assert printed, f"{page} shows no command under {heading!r}"
    return printed


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file, those in classes too."""
    nodes = ast.walk(ast.parse((DOCS.parent / path).read_text()))
    found = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))
